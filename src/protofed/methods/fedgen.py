"""FedGen: the server trains a generator of features on the clients' heads; clients train against it.

Zhu, Hong and Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML 2021.

The paper's adversarial term has weight 0 in the authors' code and is not offered. That code keeps Adam's state from
round to round and counts the labels of the mini-batches; here Adam begins anew and counts are those of the data. A
batch of ``B`` real samples comes with ``B`` generated ones, so that the code's factor ``B_g/B`` is 1.

``preset = htfl`` is the variant of HtFLlib and PFLlib, in which only heads are shared and extractors may differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch.nn.functional as F
from torch import Tensor

from protofed.errors import ModelError
from protofed.methods import register
from protofed.methods._distillation import divergence
from protofed.methods._generator import (
    GeneratorMethod,
    GeneratorOptions,
    Heads,
    diversity,
    require_positive,
)
from protofed.methods._presets import filled
from protofed.methods._weights import load_weights
from protofed.methods.contract import Batch, Local, Phase, Task, Tensors, Terms, Update
from protofed.options import option
from protofed.prototypes.inference import most_likely
from protofed.wire.schema import Payload

if TYPE_CHECKING:
    from protofed.models import SplitModel

PRESETS: dict[str, dict[str, Any]] = {
    "original": {
        "share": "all",
        "start": 2,
        "alpha": 10.0,
        "beta": 10.0,
        "decay": 0.98,
        "label_prior": "available",
        "ensemble": "models",
        "eta": 1.0,
        "generator_hidden": 256,
        "generator_steps": 50,
        "generator_lr": 3e-4,
        "generator_decay": 0.98,
        "generator_weight_decay": 1e-2,
    },
    "htfl": {
        "share": "head",
        "start": 1,
        "alpha": 1.0,
        "beta": 0.0,
        "decay": 1.0,
        "label_prior": "counts",
        "ensemble": "logits",
        "eta": 0.0,
        "generator_hidden": 512,
        "generator_steps": 100,
        "generator_lr": 0.1,
        "generator_decay": 1.0,
        "generator_weight_decay": 0.0,
    },
}


@dataclass(frozen=True)
class FedGenOptions(GeneratorOptions):
    """Hyperparameters; where none is given here, the preset's (original / htfl)."""

    preset: Literal["original", "htfl"] = option("original", "whose settings to take where none is named below")
    share: Literal["all", "head"] | None = option(
        None, "what is averaged: all weights, or heads alone (all / head)"
    )
    start: int | None = option(
        None, "first round with generated samples; in round 1 the generator is random (2 / 1)"
    )
    alpha: float | None = option(None, "weight α_0 of the generated samples' cross-entropy (10 / 1)")
    beta: float | None = option(None, "weight β_0 of the distillation from generated features (10 / 0)")
    decay: float | None = option(None, "factor on α and β per round (0.98 / 1)")
    floor: float = option(1e-4, "smallest α and β, unless they are 0 from the start")
    label_prior: Literal["available", "counts", "uniform"] | None = option(
        None,
        "labels to generate: of classes held, alike; as frequent as held; or all K, and no counts are sent "
        "(available / counts)",
    )
    ensemble: Literal["models", "logits"] | None = option(
        None,
        "the generator answers to every head, weighted by its share in the class, or to their mean logits "
        "(models / logits)",
    )
    eta: float | None = option(None, "weight η of the generator's diversity (1 / 0)")
    generator_hidden: int | None = option(None, "width h of the generator (256 / 512)")
    generator_steps: int | None = option(None, "server steps per round (50 / 100)")
    generator_lr: float | None = option(None, "learning rate of the server's Adam (3e-4 / 0.1)")
    generator_decay: float | None = option(None, "factor on it per round (0.98 / 1)")
    generator_weight_decay: float | None = option(None, "its weight decay (0.01 / 0)")

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ("alpha", "beta", "decay", "floor", "eta", "generator_steps", "generator_weight_decay")
        require_positive(self, *names, "generator_lr", "generator_decay")
        for name in ("generator_hidden", "start"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")


@register
class FedGen(GeneratorMethod):
    """``G`` and ``w`` (or the heads) come down; trained weights and label counts go up.

    With ``share = head`` a client is scored with its own extractor and the mean head: rule ``head``.
    """

    name = "fedgen"
    summary = "FedAvg, and a generator of features trained on all heads"
    reference = "Zhu, Hong and Zhou, ICML 2021, arXiv 2105.10056"
    up = "|w|"
    down = "|w| + |G|"
    same_architecture = True
    Options = FedGenOptions

    def __init__(self, options: FedGenOptions, task: Task) -> None:
        super().__init__(filled(options, PRESETS), task)
        if self.options.share == "head":
            self.exchanges = "part of the weights"

    @classmethod
    def needs_same_architecture(cls, options: FedGenOptions) -> bool:
        """Heads alone fit any extractor of the same width."""
        return bool(filled(options, PRESETS).share == "all")

    def shares(self, name: str) -> bool:
        """All weights, or those of the head."""
        return self.options.share == "all" or name.startswith("head.")

    # The client.

    def extend(self, model: SplitModel) -> None:
        """Refuse a head without bias, which the server could not average with the others."""
        super().extend(model)
        if model.head.bias is None:
            raise ModelError("fedgen shares a head with a bias, but this model's head has none")

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Keep what came; a head that is shared alone replaces the client's at once."""
        received = super().receive(local, message)
        if self.options.share == "head":
            load_weights(local.model, self.global_weights(received))
        return received

    def weight(self, first: float, round: int) -> float:
        """Return ``max(floor, first·decay^t)`` with t = 0 in the first round; 0 stays 0."""
        return max(self.options.floor, first * self.options.decay ** (round - 1)) if first else 0.0

    def phases(self, round: int) -> tuple[Phase, ...]:
        """Cross-entropy alone before there is a generator worth listening to."""
        if round < self.options.start:
            return (Phase((Update(self.loss),)),)
        alpha, beta = (self.weight(first, round) for first in (self.options.alpha, self.options.beta))
        return (Phase((Update(partial(self.guided_loss, alpha, beta)),)),)

    def guided_loss(
        self, alpha: float, beta: float, model: SplitModel, batch: Batch, received: Tensors, state: Tensors
    ) -> Terms:
        """``CE + α_t·CE(g(G(ε, y')), y') + β_t·KL(softmax g(G(ε', y)) ‖ p(x))``, the teacher held fixed."""
        output = model(batch.x)
        terms = {"cross_entropy": batch.cross_entropy(output.logits)}
        if alpha:
            terms["generated"] = alpha * self.pseudo_error(model, batch, received)
        if beta:
            features = self.generated(received, self.draw(model, batch, received), batch.y)
            terms["distillation"] = beta * divergence(batch, model.classify(features).detach(), output.logits)
        return terms, output

    @property
    def rules(self) -> tuple[str, ...]:
        """The global and the client's own model; where only heads are shared, its own with the mean head."""
        return super().rules if self.options.share == "all" else ("head",)

    def predict(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Argmax of the classifier."""
        if self.options.share == "all":
            return super().predict(model, batch, received, state)
        return {"head": most_likely(model(batch.x).logits)}

    # The server.

    def generator_loss(
        self, server: Tensors, heads: Heads, noise: Tensor, labels: Tensor, features: Tensor, round: int
    ) -> Tensor:
        """``Σ_i mean_b(a_{y,i}·CE(g_i(G), y)) + η·div``, or ``CE(Σ_i (n_i/n)·g_i(G), y) + η·div``."""
        if self.options.ensemble == "models":
            error = heads.weighted_errors(features, labels)
        else:
            mean = (heads.share[:, None, None] * heads.logits(features)).sum(0)
            error = F.cross_entropy(mean, labels)
        return error + self.options.eta * diversity(noise, features) if self.options.eta else error
