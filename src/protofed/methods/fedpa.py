"""FedPA: FedGen's generator, kept away from the global prototypes towards which clients pull real features.

Jiang, Wang, Yang, Shu, Lin and Yi, "Generator-based Heterogeneous Federated Prototype Adversarial Learning", IEEE
TDSC 2024. The paper's body could not be read; the formulas are those of a repository that looks like the authors',
which is not confirmed. What it hard-codes are defaults here. It resets the prototype of a class nobody reports to
zero; here such a class keeps its last one. "Heterogeneous" is said of the data: all clients share one architecture.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from protofed.errors import ModelError
from protofed.methods import register
from protofed.methods._generator import (
    GeneratorMethod,
    GeneratorOptions,
    Heads,
    diversity,
    require_positive,
)
from protofed.methods._prototypes import no_prototypes
from protofed.methods.contract import Aggregate, Batch, Local, Phase, Tensors, Terms, Update, Upload
from protofed.options import option
from protofed.prototypes.inference import squared_pull
from protofed.prototypes.means import RunningMean, class_means, class_sums
from protofed.prototypes.table import Prototypes
from protofed.wire.schema import Field, Payload

if TYPE_CHECKING:
    from protofed.models import Output, SplitModel


@dataclass(frozen=True)
class FedPAOptions(GeneratorOptions):
    """Hyperparameters."""

    alpha: float = option(25.0, "weight α_0 of the generated samples' cross-entropy, on both sides")
    alpha_floor: float = option(1e-4, "smallest α")
    beta: float = option(5.0, "weight β_0 of the pull towards the global prototypes")
    beta_floor: float = option(0.15, "smallest β")
    decay: float = option(0.98, "factor on α and β per round")
    adversarial: float = option(0.15, "weight of the generator's push away from the prototypes")
    push_limit: float = option(100.0, "squared distance per entry beyond which it is pushed no further")
    eta: float = option(1.0, "weight η of the generator's diversity")
    label_prior: Literal["available", "counts", "uniform"] = option(
        "available", "labels to generate: of classes held, alike; as frequent as held; or all K, no counts are sent"
    )
    prototypes: Literal["during", "after"] = option(
        "during", "local prototypes from the steps of the last local epoch, or from a pass after training"
    )
    generator_hidden: int = option(256, "width h of the generator")
    generator_steps: int = option(50, "server steps per round")
    generator_lr: float = option(1e-4, "learning rate of the server's Adam; 3e-4 for MNIST in that code")
    generator_decay: float = option(0.98, "factor on it per round")
    generator_weight_decay: float = option(1e-2, "its weight decay")

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ("alpha", "alpha_floor", "beta", "beta_floor", "decay", "adversarial", "push_limit", "eta")
        require_positive(
            self, *names, "generator_steps", "generator_lr", "generator_decay", "generator_weight_decay"
        )
        if self.generator_hidden < 1:
            raise ValueError(f"generator_hidden must be at least 1, not {self.generator_hidden}")


@register
class FedPA(GeneratorMethod):
    """``w``, ``G`` and prototypes come down; trained weights, local prototypes and label counts go up.

    Server state, beside the generator's: ``prototypes`` ``(K, d)`` and ``present`` ``(K,)``.
    """

    name = "fedpa"
    summary = "FedAvg, global prototypes, and a generator that keeps away from them"
    reference = "Jiang et al., IEEE TDSC 2024, doi 10.1109/TDSC.2024.3419211"
    up = "|w| + K_i·d"
    down = "|w| + |G| + K·d"
    same_architecture = True
    Options = FedPAOptions

    def more_up(self) -> dict[str, Field]:
        """``k`` local prototypes and their classes."""
        return {"classes": Field(("k",), "label", parameter=False), "prototypes": Field(("k", "d"))}

    more_down = more_up

    def weight(self, first: float, floor: float, round: int) -> float:
        """Return ``max(floor, first·decay^t)`` with t = 0 in the first round; 0 stays 0."""
        return float(max(floor, first * self.options.decay ** (round - 1))) if first else 0.0

    def alpha(self, round: int) -> float:
        """Return ``α_t``."""
        return self.weight(self.options.alpha, self.options.alpha_floor, round)

    # The client.

    def extend(self, model: SplitModel) -> None:
        """Refuse a head without bias."""
        super().extend(model)
        if model.head.bias is None:
            raise ModelError("fedpa needs a head with a bias, but this model's head has none")

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Keep the weights, the generator, the prior, and the table of prototypes."""
        if message is None:
            return {**super().receive(local, None), **no_prototypes(self.task).tensors()}
        rest = {n: t for n, t in message.items() if n not in self.more_down()}
        table = Prototypes.received(message["prototypes"], message["classes"], self.task.num_classes)
        return {**super().receive(local, rest), **table.tensors()}

    def phases(self, round: int) -> tuple[Phase, ...]:
        """Cross-entropy alone in the first round."""
        if round == 1:
            return (Phase((Update(self.loss),)),)
        beta = self.weight(self.options.beta, self.options.beta_floor, round)
        return (Phase((Update(partial(self.guided_loss, self.alpha(round), beta)),)),)

    def guided_loss(
        self, alpha: float, beta: float, model: SplitModel, batch: Batch, received: Tensors, state: Tensors
    ) -> Terms:
        """``CE + α_t·CE(g(G(ε, y')), y') + β_t·MSE(f(x), P_y)``; classes without a prototype are not pulled."""
        output = model(batch.x)
        terms = {"cross_entropy": batch.cross_entropy(output.logits)}
        if alpha:
            terms["generated"] = alpha * self.pseudo_error(model, batch, received)
        if beta:
            pull = squared_pull(output.features, batch.y, Prototypes.of(received))
            terms["prototype"] = beta * batch.mean(pull)
        return terms, output

    @property
    def statistics_from(self) -> Literal["after", "during"]:
        """Local prototypes are means over the training data, in that code as features change during training."""
        when: Literal["after", "during"] = self.options.prototypes
        return when

    def statistics(self, output: Output, batch: Batch) -> Tensors:
        """Sums and counts per class."""
        sums, counts = class_sums(output.features, batch.y, self.task.num_classes, batch.weight)
        return {"sums": sums, "held": counts}

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``w_i``, ``n_i``, ``n_ij``, and ``p_ij`` of the classes seen."""
        payload = super().upload(local, statistics)
        d = self.task.feature_dim
        if not statistics:  # no step was possible
            like = payload["head.weight"]
            none = torch.zeros(0, dtype=torch.int64, device=like.device)
            return {**payload, "classes": none, "prototypes": like.new_zeros(0, d)}
        rows, classes = class_means(statistics["sums"], statistics["held"]).to_send()
        return {**payload, "classes": classes, "prototypes": rows}

    # The server.

    def server_state(self) -> Tensors:
        """Start without prototypes."""
        return {**super().server_state(), **no_prototypes(self.task).tensors()}

    def broadcast(self, server: Tensors, round: int, client: str | None = None) -> Payload:
        """Send ``w^t``, ``G``, the prior, and the prototypes that exist."""
        rows, classes = Prototypes.of(server).to_send()
        table = {"classes": classes, "prototypes": rows}
        rest = {n: server[n] for n in self.broadcast_schema.fields if n not in table}
        return {**rest, **table}

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """As FedGen's, with last round's prototypes; then ``P_c = Σ_i (n_ic / Σ n_ic)·p_ic`` over the reporters."""
        mean = RunningMean(self.task.num_classes, self.task.feature_dim)

        def watched() -> Iterable[Upload]:
            for upload in uploads:
                payload = upload.payload
                counts = payload.get("counts")
                own = None if counts is None else counts[payload["classes"]]
                mean.add(payload["classes"], payload["prototypes"], own)
                yield upload

        state, diagnostics = super().aggregate(server, watched(), round)
        return Aggregate({**state, **Prototypes.of(server).merged(mean.mean()).tensors()}, diagnostics)

    def generator_loss(
        self, server: Tensors, heads: Heads, noise: Tensor, labels: Tensor, features: Tensor, round: int
    ) -> Tensor:
        """``α_t·Σ_i mean_b(a_{y,i}·CE(g_i(G), y)) − 0.15·MSE(G, P_y) + η·div``; the push from the second round on.

        Without a limit the push has no lower bound. Pairs of one label do not count as diverse.
        """
        o = self.options
        different = labels.unsqueeze(0) != labels.unsqueeze(1)
        loss = self.alpha(round) * heads.weighted_errors(features, labels)
        if round > 1 and o.adversarial:
            distance = squared_pull(features, labels, Prototypes.of(server))
            loss = loss - o.adversarial * distance.clamp(max=o.push_limit).mean()
        result: Tensor = loss + o.eta * diversity(noise, features, different)
        return result
