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
from typing import Literal, NamedTuple

import torch.nn.functional as F
from torch import Tensor

from protofed.errors import ModelError
from protofed.methods import register
from protofed.methods.contract import Aggregate, Phase, Round, Terms, Traits, Update, Upload
from protofed.methods.fedavg import FedAvg
from protofed.methods.given import Batch, Local, SplitModel, Task, Tensors
from protofed.methods.parts.generator import (
    FeatureGenerator,
    GeneratorOptions,
    Heads,
    LabelPrior,
    Teachers,
    diversity,
)
from protofed.methods.parts.training import divergence
from protofed.methods.parts.weights import WeightedMean, load_weights, weight_of
from protofed.methods.traits import GLOBAL_MODEL, HEAD, Protection
from protofed.options import remote
from protofed.wire.schema import Payload, Schema, weight_schema


class Code(NamedTuple):
    """What one repository hard-codes, and its values of the options that are None or 0."""

    share: Literal["all", "head"]
    start: int  # first round with generated samples; in round 1 the generator is random
    decay: float  # factor on α, β and the server's learning rate per round
    ensemble: Literal["models", "logits"]  # the generator answers to every head, or to their mean logits
    eta: float  # weight of the generator's diversity
    weight_decay: float  # of the server's Adam
    alpha: float
    beta: float
    label_prior: LabelPrior
    hidden: int
    steps: int
    lr: float


CODES = {
    "original": Code("all", 2, 0.98, "models", 1.0, 1e-2, 10.0, 10.0, "available", 256, 50, 3e-4),
    "htfl": Code("head", 1, 1.0, "logits", 0.0, 0.0, 1.0, 0.0, "counts", 512, 100, 0.1),
}
FLOOR = 1e-4  #: Smallest α and β, unless they are 0 from the start


@dataclass(frozen=True)
class FedGenOptions(GeneratorOptions):
    """Hyperparameters; those that are None or 0 are the preset's (original / htfl)."""

    preset: Literal["original", "htfl"] = remote(
        "original",
        "the authors' code, which shares all weights; or HtFLlib's and PFLlib's, which shares heads alone",
    )
    alpha: float | None = remote(None, "weight α_0 of the generated samples' cross-entropy (10 / 1)", least=0)
    beta: float | None = remote(None, "weight β_0 of the distillation from generated features (10 / 0)", least=0)
    label_prior: LabelPrior | None = remote(
        None,
        "labels to generate: of classes held, alike; as frequent as held; or all K, and no counts are sent "
        "(available / counts)",
    )
    generator_hidden: int = remote(0, "width h of the generator (0 = 256 / 512)", least=0)
    generator_steps: int = remote(0, "server steps per round (0 = 50 / 100)", least=0)
    generator_lr: float = remote(
        0.0, "learning rate of the server's Adam (0 = 3e-4, ×0.98 per round / 0.1)", least=0
    )


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
        super().__init__(options, task)
        o, code = options, CODES[options.preset]
        self.code = code
        self.alpha = code.alpha if o.alpha is None else o.alpha
        self.beta = code.beta if o.beta is None else o.beta
        self.steps = o.generator_steps or code.steps
        self.lr = o.generator_lr or code.lr
        prior = o.label_prior or code.label_prior
        self.generator = FeatureGenerator(task, o.generator_hidden or code.hidden, prior)

    @classmethod
    def traits(cls, options: FedGenOptions) -> Traits:
        """Heads alone fit any extractor of the same width; the generator learns from every single head."""
        alone = CODES[options.preset].share == "head"
        return replace(
            super().traits(options),
            exchanges="part of the weights" if alone else "all weights",
            up="|φ|" if alone else "|w|",
            down="|φ| + |G|" if alone else "|w| + |G|",
            rules=(HEAD,) if alone else (GLOBAL_MODEL, HEAD),
            alike="features" if alone else "architecture",
            aggregation="single",
            protection=Protection(),
        )

    def shares(self, name: str) -> bool:
        """All weights, or those of the head."""
        return self.code.share == "all" or name.startswith("head.")

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
        if self.code.share == "head":
            load_weights(local.model, self.global_weights(received))
        return received

    def weight(self, first: float, round_number: int) -> float:
        """Return ``max(FLOOR, first·decay^t)`` with t = 0 in round 1, or 0 if ``first`` is 0."""
        return max(FLOOR, first * self.code.decay ** (round_number - 1)) if first else 0.0

    def round(self, number: int) -> Round:
        """Cross-entropy alone before the round ``start``."""
        if number < self.code.start:
            return super().round(number)
        alpha, beta = (self.weight(first, number) for first in (self.alpha, self.beta))
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
        if self.code.share == "all":
            return super().scores(model, batch, received, state)
        return {"head": model(batch.x).logits}

    # The server.

    def server_state(self) -> Tensors:
        """Start from one initial model and a random generator; all classes have equal chances."""
        return {**self.initial, **self.generator.server_state()}

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """Train the generator on the heads just uploaded, and average the weights."""
        mean, teachers = WeightedMean(), Teachers(self.task.num_classes, self.task.dtype)
        for _, payload in uploads:
            mean.add({name: payload[name] for name in self.initial}, weight_of(payload, self.options.weighting))
            teachers.add(payload)
        if not teachers.sizes:
            return Aggregate(server, {})
        averaged = mean.mean({name: server[name] for name in self.initial})
        lr = self.lr * self.code.decay ** (round_number - 1)
        trained, diagnostics = self.generator.train(
            server,
            teachers,
            self.generator_loss,
            round_number,
            steps=self.steps,
            lr=lr,
            weight_decay=self.code.weight_decay,
        )
        return Aggregate({**server, **averaged, **trained}, diagnostics)

    def generator_loss(self, heads: Heads, noise: Tensor, labels: Tensor, features: Tensor) -> Tensor:
        """Return ``Σ_i mean_b(a_{y,i}·CE(g_i(G), y)) + η·div``, or ``CE(Σ_i (n_i/n)·g_i(G), y) + η·div``."""
        if self.code.ensemble == "models":
            error = heads.weigh_errors(features, labels)
        else:
            mean = (heads.share[:, None, None] * heads.logits(features)).sum(0)
            error = F.cross_entropy(mean, labels)
        return error + self.code.eta * diversity(noise, features) if self.code.eta else error
