"""FedGen: the server trains a generator of features on the clients' heads; clients train against it.

Zhu, Hong and Zhou, "Data-Free Knowledge Distillation for Heterogeneous Federated Learning", ICML 2021.

The paper's adversarial term has weight 0 in the authors' code and is not offered. That code keeps Adam's state from
round to round and counts the labels of the mini-batches; here Adam begins anew and counts are those of the data. A
batch of ``B`` real samples comes with ``B`` generated ones, so that the code's factor ``B_g/B`` is 1.

``preset = htfl`` is the variant of HtFLlib and PFLlib, in which only heads are shared and extractors may differ.
HtFLlib trains the generator and does not save it, so that its clients meet a random one for ever; ours is trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Literal

import torch.nn.functional as F
from torch import Tensor

from protofed.errors import ModelError
from protofed.methods import register
from protofed.methods.contract import Aggregate, Phase, Round, Terms, Traits, Update, Upload
from protofed.methods.fedavg import FedAvg
from protofed.methods.given import Batch, Local, Task, Tensors
from protofed.methods.parts.distillation import divergence
from protofed.methods.parts.generator import (
    FeatureGenerator,
    GeneratorOptions,
    Heads,
    LabelPrior,
    Teachers,
    diversity,
)
from protofed.methods.parts.presets import Preset, filled
from protofed.methods.parts.weights import WeightedMean, load_weights, weight_of
from protofed.methods.traits import GLOBAL_MODEL, HEAD, Protection
from protofed.options import remote
from protofed.wire.schema import Payload, Schema, weight_schema

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
    """Hyperparameters; the defaults of those that are None are the preset's (original / htfl)."""

    preset: Literal["original", "htfl"] = remote("original", "whose settings to take where none is named below")
    share: Preset[Literal["all", "head"]] = remote(
        None, "what is averaged: all weights, or heads alone (all / head)"
    )
    start: Preset[int] = remote(
        None, "first round with generated samples; in round 1 the generator is random (2 / 1)", least=1
    )
    alpha: Preset[float] = remote(None, "weight α_0 of the generated samples' cross-entropy (10 / 1)", least=0)
    beta: Preset[float] = remote(None, "weight β_0 of the distillation from generated features (10 / 0)", least=0)
    decay: Preset[float] = remote(None, "factor on α and β per round (0.98 / 1)", least=0)
    floor: float = remote(1e-4, "smallest α and β, unless they are 0 from the start", least=0)
    label_prior: Preset[LabelPrior] = remote(
        None,
        "labels to generate: of classes held, alike; as frequent as held; or all K, and no counts are sent "
        "(available / counts)",
    )
    ensemble: Preset[Literal["models", "logits"]] = remote(
        None,
        "the generator answers to every head, weighted by its share in the class, or to their mean logits "
        "(models / logits)",
    )
    eta: Preset[float] = remote(None, "weight η of the generator's diversity (1 / 0)", least=0)
    generator_hidden: Preset[int] = remote(None, "width h of the generator (256 / 512)", least=1)
    generator_steps: Preset[int] = remote(None, "server steps per round (50 / 100)", least=0)
    generator_lr: Preset[float] = remote(None, "learning rate of the server's Adam (3e-4 / 0.1)", least=0)
    generator_decay: Preset[float] = remote(None, "factor on it per round (0.98 / 1)", least=0)
    generator_weight_decay: Preset[float] = remote(None, "its weight decay (0.01 / 0)", least=0)


@register
class FedGen(FedAvg[FedGenOptions]):
    """``G`` and ``w`` (or the heads) come down; trained weights and label counts go up.

    With ``share = head`` a client is scored with its own extractor and the mean head: rule ``head``. Server state:
    the weights, the generator's ``generator.…``, and ``prior`` ``(K,)``, the chances of generated labels.
    """

    name = "fedgen"
    summary = "FedAvg, and a generator of features trained on all heads"
    reference = "Zhu, Hong and Zhou, ICML 2021, arXiv 2105.10056"
    Options = FedGenOptions

    def __init__(self, options: FedGenOptions, task: Task) -> None:
        super().__init__(filled(options, PRESETS), task)
        o = self.options
        self.generator = FeatureGenerator(o, task, o.generator_hidden, o.label_prior)

    @classmethod
    def traits(cls, options: FedGenOptions) -> Traits:
        """Heads alone fit any extractor of the same width; the generator learns from every single head."""
        alone = filled(options, PRESETS).share == "head"
        return replace(
            super().traits(options),
            exchanges="part of the weights" if alone else "all weights",
            up="|φ|" if alone else "|w|",
            down="|φ| + |G|" if alone else "|w| + |G|",
            rules=(HEAD,) if alone else (GLOBAL_MODEL, HEAD),
            same_architecture=not alone,
            same_feature_dim=True,
            sums_only=False,
            protection=Protection(),
        )

    def shares(self, name: str) -> bool:
        """All weights, or those of the head."""
        return self.options.share == "all" or name.startswith("head.")

    # What crosses the network.

    @cached_property
    def broadcast_schema(self) -> Schema:
        """The weights, the generator, and the chances of generated labels."""
        K = self.task.num_classes
        fields = {**weight_schema(self.initial, K).fields, **self.generator.broadcast_fields()}
        return Schema(fields, K, {"d": self.task.feature_dim})

    @cached_property
    def upload_schema(self) -> Schema:
        """The weights, ``n_i``, and ``n_ij`` unless the prior is uniform."""
        K = self.task.num_classes
        fields = {**weight_schema(self.initial, K).fields, **self.generator.upload_fields()}
        return Schema(fields, K, {"d": self.task.feature_dim})

    # The client.

    def extend(self, model: SplitModel) -> None:
        """Add the source of ε and y'; refuse a head without bias."""
        model.add_noise("noise")
        if model.head.bias is None:
            raise ModelError("fedgen shares a head with a bias, but this model's head has none")

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Keep the broadcast; a head that is shared alone replaces the client's at once."""
        received = super().receive(local, message)
        if message is None:
            received |= self.generator.not_received()
        if self.options.share == "head":
            load_weights(local.model, self.global_weights(received))
        return received

    def weight(self, first: float, round: int) -> float:
        """Return ``max(floor, first·decay^t)`` with t = 0 in round 1, or 0 if ``first`` is 0."""
        return max(self.options.floor, first * self.options.decay ** (round - 1)) if first else 0.0

    def round(self, number: int) -> Round:
        """Cross-entropy alone before the round ``start``."""
        if number < self.options.start:
            return super().round(number)
        alpha, beta = (self.weight(first, number) for first in (self.options.alpha, self.options.beta))
        return Round((Phase((Update(partial(self.guided_loss, alpha, beta)),)),))

    def guided_loss(
        self, alpha: float, beta: float, model: SplitModel, batch: Batch, received: Tensors, state: Tensors
    ) -> Terms:
        """Return ``CE + α_t·CE(g(G(ε, y')), y') + β_t·KL(softmax g(G(ε', y)) ‖ p(x))``, the teacher held fixed."""
        output = model(batch.x)
        terms = {"cross_entropy": batch.cross_entropy(output.logits)}
        if alpha:
            terms["generated"] = alpha * self.generator.pseudo_error(model, batch, received)
        if beta:
            noise = self.generator.noise(model, batch, received)
            features = self.generator.features(received, noise, batch.y)
            terms["distillation"] = beta * divergence(batch, model.classify(features).detach(), output.logits)
        return terms, output

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``w_i``, ``n_i`` and ``n_ij``."""
        return {**super().upload(local, statistics), **self.generator.counts_to_send(local.counts)}

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Logits of the global model and the client's own, or of its own with the mean head."""
        if self.options.share == "all":
            return super().scores(model, batch, received, state)
        return {"head": model(batch.x).logits}

    # The server.

    def server_state(self) -> Tensors:
        """Start from one initial model and a random generator; all classes have equal chances."""
        return {**self.initial, **self.generator.server_state()}

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """Train the generator on the heads just uploaded, and average the weights."""
        o, mean, teachers = self.options, WeightedMean(), Teachers(self.task.num_classes, self.task.dtype)
        for _, payload in uploads:
            mean.add({name: payload[name] for name in self.initial}, weight_of(payload, o.weighting))
            teachers.add(payload)
        if not teachers.sizes:
            return Aggregate(server, {})
        averaged = mean.mean({name: server[name] for name in self.initial})
        lr = o.generator_lr * o.generator_decay ** (round - 1)
        trained, diagnostics = self.generator.taught(
            server,
            teachers,
            self.generator_loss,
            round,
            steps=o.generator_steps,
            lr=lr,
            weight_decay=o.generator_weight_decay,
        )
        return Aggregate({**server, **averaged, **trained}, diagnostics)

    def generator_loss(self, heads: Heads, noise: Tensor, labels: Tensor, features: Tensor) -> Tensor:
        """Return ``Σ_i mean_b(a_{y,i}·CE(g_i(G), y)) + η·div``, or ``CE(Σ_i (n_i/n)·g_i(G), y) + η·div``.

        Args:
            noise: ``(B, z)``.
            features: ``(B, d)``, ``G`` of both.
        """
        if self.options.ensemble == "models":
            error = heads.weighted_errors(features, labels)
        else:
            mean = (heads.share[:, None, None] * heads.logits(features)).sum(0)
            error = F.cross_entropy(mean, labels)
        return error + self.options.eta * diversity(noise, features) if self.options.eta else error
