"""FedPA: FedGen's generator, kept away from the global prototypes towards which clients pull real features.

Jiang, Wang, Yang, Shu, Lin and Yi, "Generator-based Heterogeneous Federated Prototype Adversarial Learning", IEEE
TDSC 2024. The paper's body could not be read; the formulas are those of a repository that looks like the authors',
which is not confirmed; its MNIST has ``generator_lr = 3e-4``. It resets the prototype of a class nobody reports to
zero; here such a class keeps its last one. "Heterogeneous" is said of the data: all clients share one architecture.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Literal

from torch import Tensor

from protofed.errors import ModelError
from protofed.methods import register
from protofed.methods.contract import Aggregate, Phase, Round, Statistics, Terms, Traits, Update, Upload
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
from protofed.methods.parts.nearest import class_statistics, no_rows
from protofed.methods.parts.weights import WeightedMean, weight_of
from protofed.methods.traits import Protection
from protofed.options import remote
from protofed.prototypes.inference import pull
from protofed.prototypes.means import RunningMean, class_means
from protofed.prototypes.table import Prototypes
from protofed.wire.schema import Field, Payload, Schema, weight_schema

DECAY = 0.98  #: Factor on α, β and the server's learning rate per round
ALPHA_FLOOR, BETA_FLOOR = 1e-4, 0.15  #: Smallest α and β, unless they are 0 from the start
PUSH_LIMIT = 100.0  #: Squared distance per entry beyond which the generator is pushed no further
WEIGHT_DECAY = 1e-2  #: Of the server's Adam


@dataclass(frozen=True)
class FedPAOptions(GeneratorOptions):
    """Hyperparameters."""

    alpha: float = remote(25.0, "weight α_0 of the generated samples' cross-entropy, on both sides", least=0)
    beta: float = remote(5.0, "weight β_0 of the pull towards the global prototypes", least=0)
    adversarial: float = remote(0.15, "weight of the generator's push away from the prototypes", least=0)
    label_prior: LabelPrior = remote(
        "available", "labels to generate: of classes held, alike; as frequent as held; or all K, no counts are sent"
    )
    prototypes: Literal["during", "after"] = remote(
        "during", "local prototypes from the steps of the last local epoch, or from a pass after training"
    )


@register
class FedPA(FedAvg[FedPAOptions]):
    """``w``, ``G`` and prototypes come down; trained weights, local prototypes and label counts go up.

    Server state: the weights; the generator's ``generator.…``; ``prior`` ``(K,)``, the chances of generated labels;
    ``prototypes`` ``(K, d)`` and ``present`` ``(K,)``.
    """

    name = "fedpa"
    summary = "FedAvg, global prototypes, and a generator that keeps away from them"
    reference = "Jiang et al., IEEE TDSC 2024, doi 10.1109/TDSC.2024.3419211"
    Options = FedPAOptions

    def __init__(self, options: FedPAOptions, task: Task) -> None:
        super().__init__(options, task)
        self.generator = FeatureGenerator(task, options.generator_hidden, options.label_prior)

    @classmethod
    def traits(cls, options: FedPAOptions) -> Traits:
        """The generator learns from every single head."""
        return replace(
            super().traits(options),
            up="|w| + K_i·d",
            down="|w| + |G| + K·d",
            aggregation="single",
            protection=Protection(),
        )

    # What crosses the network.

    def _schema(self, fields: dict[str, Field]) -> Schema:
        """Return the schema of weights, ``fields``, and ``k`` prototypes with their classes."""
        K = self.task.num_classes
        table = {"classes": Field(("k",), "label", parameter=False), "prototypes": Field(("k", "d"))}
        weights = weight_schema(self.initial, K).fields
        return Schema({**weights, **fields, **table}, K, {"d": self.task.feature_dim}, {"k": K})

    @cached_property
    def broadcast_schema(self) -> Schema:
        """The weights, the generator, the chances of generated labels, and global prototypes."""
        return self._schema(self.generator.broadcast_fields())

    @cached_property
    def upload_schema(self) -> Schema:
        """The weights, ``n_i``, ``n_ij`` unless the prior is uniform, and local prototypes."""
        return self._schema(self.generator.upload_fields())

    def weight(self, first: float, floor: float, round_number: int) -> float:
        """Return ``max(floor, first·decay^t)`` with t = 0 in round 1, or 0 if ``first`` is 0."""
        return max(floor, first * DECAY ** (round_number - 1)) if first else 0.0

    def alpha(self, round_number: int) -> float:
        """Return ``α_t``."""
        return self.weight(self.options.alpha, ALPHA_FLOOR, round_number)

    # The client.

    def extend(self, model: SplitModel) -> None:
        """Add the source of ε and y'; refuse a head without bias."""
        model.add_noise("noise")
        if model.head.bias is None:
            raise ModelError("fedpa needs a head with a bias, but this model's head has none")

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Keep the weights, the generator, the prior, and the table of prototypes."""
        if message is None:
            weights = super().receive(local, None)
            return {**weights, **self.generator.not_received(), **no_rows(self.task).tensors()}
        rest = {n: t for n, t in message.items() if n not in ("classes", "prototypes")}
        table = Prototypes.received(message["prototypes"], message["classes"], self.task.num_classes)
        return {**rest, **table.tensors()}

    def round(self, number: int) -> Round:
        """Cross-entropy alone in the first round."""
        if number == 1:
            return super().round(number)
        beta = self.weight(self.options.beta, BETA_FLOOR, number)
        return Round((Phase((Update(partial(self.guided_loss, self.alpha(number), beta)),)),))

    def guided_loss(
        self, alpha: float, beta: float, model: SplitModel, batch: Batch, received: Tensors, state: Tensors
    ) -> Terms:
        """Return ``CE + α_t·CE(g(G(ε, y')), y') + β_t·MSE(f(x), P_y)``; a class without a prototype has no pull."""
        output = model(batch.x)
        terms = {"cross_entropy": batch.cross_entropy(output.logits)}
        if alpha:
            terms["generated"] = alpha * self.generator.pseudo_error(model, batch, received)
        if beta:
            apart = pull(output.features, batch.y, Prototypes.of(received))
            terms["prototype"] = beta * batch.mean(apart)
        return terms, output

    @property
    def statistics(self) -> Statistics:
        """Local prototypes are means over the training data, in that code while features change."""
        return class_statistics(self.task.num_classes, self.options.prototypes)

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``w_i``, ``n_i``, ``n_ij``, and ``p_ij`` of the classes seen."""
        payload = {**super().upload(local, statistics), **self.generator.counts_to_send(local.counts)}
        rows, classes = class_means(statistics["sums"], statistics["counts"]).to_send()
        return {**payload, "classes": classes, "prototypes": rows}

    # The server.

    def server_state(self) -> Tensors:
        """Start from one initial model and a random generator, without prototypes."""
        return {**self.initial, **self.generator.server_state(), **no_rows(self.task).tensors()}

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload:
        """Send ``w^t``, ``G``, the prior, and the prototypes that exist."""
        rows, classes = Prototypes.of(server).to_send()
        table = {"classes": classes, "prototypes": rows}
        rest = {n: server[n] for n in self.broadcast_schema.fields if n not in table}
        return {**rest, **table}

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """Train the generator against last round's prototypes, average the weights and the prototypes.

        ``P_c = Σ_i (n_ic / Σ n_ic)·p_ic`` over the clients that report class c; their mean with
        ``label_prior = uniform``, for which no ``n_ic`` is sent.
        """
        o, mean, teachers = self.options, WeightedMean(), Teachers(self.task.num_classes, self.task.dtype)
        prototypes = RunningMean(self.task.num_classes, self.task.feature_dim)
        for _, payload in uploads:
            mean.add({name: payload[name] for name in self.initial}, weight_of(payload, o.weighting))
            teachers.add(payload)
            classes = payload["classes"]
            counts = payload["counts"][classes] if "counts" in payload else None
            prototypes.add(classes, payload["prototypes"], counts)
        if not teachers.sizes:
            return Aggregate(server, {})
        averaged = mean.mean({name: server[name] for name in self.initial})
        lr = o.generator_lr * DECAY ** (round_number - 1)
        trained, diagnostics = self.generator.train(
            server,
            teachers,
            partial(self.generator_loss, Prototypes.of(server), round_number),
            round_number,
            steps=o.generator_steps,
            lr=lr,
            weight_decay=WEIGHT_DECAY,
        )
        merged = Prototypes.of(server).merged(prototypes.mean())
        return Aggregate({**server, **averaged, **trained, **merged.tensors()}, diagnostics)

    def generator_loss(
        self,
        prototypes: Prototypes,
        round_number: int,
        heads: Heads,
        noise: Tensor,
        labels: Tensor,
        features: Tensor,
    ) -> Tensor:
        """Return ``α_t·Σ_i mean_b(a_{y,i}·CE(g_i(G), y)) − 0.15·MSE(G, P_y) + div``.

        The push away from prototypes begins in the second round; without a limit it has no lower bound. Pairs of
        one label do not count as diverse.
        """
        o = self.options
        different = labels.unsqueeze(0) != labels.unsqueeze(1)
        loss = self.alpha(round_number) * heads.weigh_errors(features, labels)
        if round_number > 1 and o.adversarial:
            distance = pull(features, labels, prototypes)
            loss = loss - o.adversarial * distance.clamp(max=PUSH_LIMIT).mean()
        return loss + diversity(noise, features, different)
