"""FedLDA: linear discriminant analysis of the samples of all clients, in one round.

Clients send class means and their second moment, from which follow the class means and the covariance within
classes of all samples together, exactly. Related: FedCGS (Guan et al., "Capture Global Feature Statistics for
One-Shot Federated Learning", AAAI 2025) and GH-OFL (Turazza et al., "The Gaussian-Head OFL Family", ICLR 2026). The
shrinkage is that of Chen et al., "Shrinkage Algorithms for MMSE Covariance Estimation", IEEE TSP 2010.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from protofed.errors import ConfigError
from protofed.methods import register
from protofed.methods.contract import Batch, Local, SplitModel, Task, Tensors, Traits
from protofed.methods.parts import centring
from protofed.methods.parts.gaussian import SHRINKAGE, SHRINKAGES, Pools, Shrinkage, choose, discriminant, typical
from protofed.methods.parts.moments import (
    LARGEST,
    ClosedForm,
    Latest,
    Linear,
    Sums,
    floor,
    part_of,
    senders,
    size,
    symmetric,
    triangle,
    within,
)
from protofed.methods.parts.resemblance import resemblance
from protofed.methods.traits import HEAD
from protofed.options import Options, remote
from protofed.prototypes.inference import closeness
from protofed.prototypes.table import Prototypes
from protofed.runs.rules import NEAREST
from protofed.wire.schema import Field, Payload, Schema

SHOWN = 200
"""Most clients of which the server notes who resembles whom."""


@dataclass(frozen=True)
class Shrunk(Options):
    """The shrinkage of a covariance."""

    shrinkage: float | Literal["auto", "oas"] = remote(
        "auto",
        SHRINKAGE
        + "auto, that of three under which a client's own samples, each left out in turn, are most likely "
        "(for all classes: oas) | oas | NUMBER",
        least=0,
        most=1,
    )

    @property
    def chooses(self) -> bool:
        """Return whether clients choose by their own samples among features side by side (:attr:`Task.views`)."""
        return True

    @property
    def first(self) -> Shrinkage:
        """The shrinkage where no client chooses."""
        return SHRINKAGES[0] if self.shrinkage == "auto" else self.shrinkage

    @property
    def shrinkages(self) -> tuple[Shrinkage, ...]:
        """Those among which a client chooses."""
        return SHRINKAGES if self.shrinkage == "auto" else (self.shrinkage,)


@dataclass(frozen=True)
class FedLDAOptions(Shrunk):
    """Hyperparameters."""

    personal: bool = remote(
        True,
        "for head, each client mixes its own sums with all others', as its own samples, each left out in turn, are "
        "most likely; or takes the classifier of all",
    )
    centre: bool = remote(
        False,
        "subtract from a client's features b_i of μ_ik ≈ a_k + b_i, what sets all of its class means apart from "
        "everybody's: for clients whose devices or populations differ; answers are then for its own samples",
    )

    @property
    def chooses(self) -> bool:
        """Return whether clients choose among features side by side."""
        return self.personal


@register
class FedLDA(ClosedForm[FedLDAOptions]):
    """One covariance within classes for all samples; priors are the clients' own.

    For ``head``, a client chooses between its own sums and those of all (:mod:`protofed.methods.parts.gaussian`).
    Server state then: also ``counts`` ``(K,)``; ``moment`` and ``within`` ``(d·(d + 1)/2,)``, the mean second
    moment and scatter about each client's own class means; ``most``, the largest number of samples of one client;
    and of clients in the order of their names, ``apart`` ``(M, M)``: :func:`.resemblance.resemblance`.
    """

    name = "fedlda"
    summary = "linear discriminant analysis on fixed features of all clients: one round, no training"
    reference = "Related to FedCGS (Guan et al., AAAI 2025) and GH-OFL (Turazza et al., ICLR 2026)"
    Options = FedLDAOptions
    second = True

    def __init__(self, options: FedLDAOptions, task: Task) -> None:
        self.mixes = options.personal and task.noise is None  # sums within clients have no bound that noise hides
        super().__init__(options, task)
        self.sent_by_all = Latest(self._unpack)  #: What a broadcast holds
        if task.noise is not None and options.centre:
            raise ConfigError("privacy.mode=sample: fedlda sends noisy sums: set method.centre=false")

    @classmethod
    def traits(cls, options: FedLDAOptions) -> Traits:
        """A client that mixes is sent all sums."""
        found = super().traits(options)
        return replace(
            found,
            down="K·d + d·(d+1)" if options.personal else "K·(2·d + 1)",
            rules=(*found.rules, NEAREST),
            aggregation="single" if options.centre else "sums",
            protection=replace(found.protection, local_only=(*found.protection.local_only, "sent")),
        )

    # What crosses the network.

    def moment_fields(self, size: int) -> dict[str, Field]:
        """Return also the scatter, where the server sees nothing but sums, of which it does not follow."""
        fields = super().moment_fields(size)
        return {**fields, "within": fields["moment"]} if self.mixes and self.task.summed else fields

    @cached_property
    def broadcast_schema(self) -> Schema:
        """Class means and the classifier; or the sums."""
        if not self.mixes:
            schema = super().broadcast_schema
            assert schema is not None
            return self.schema({**self.rows("means"), **schema.fields})
        d = self.task.feature_dim
        square = Field((size(d, self.task.views),), limit=LARGEST**2)
        counts = {"counts": Field(("k",), "count", parameter=False), "most": Field((), "count", parameter=False)}
        return self.schema({**self.rows("means"), **counts, "moment": square, "within": square})

    def pack_moment(self, sums: Sums) -> Payload:
        """Return the moment, and where the server sees sums alone the scatter."""
        payload = super().pack_moment(sums)
        if self.mixes and self.task.summed:
            payload["within"] = triangle(sums.scatter, self.task.views) / sums.counts.sum().clamp(min=1)
        return payload

    # The client.

    def client_state(self, counts: Tensor) -> Tensors:
        """Remember whether the server has the client's sums."""
        return {**super().client_state(counts), "sent": torch.tensor(False)}

    def shifted(self, state: Tensors, counts: Tensor) -> Tensors:
        """Predict with the new frequencies."""
        return {**super().shifted(state, counts), "sent": state["sent"]}

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send the sums."""
        local.state["sent"] = torch.ones_like(local.state["sent"])
        return super().upload(local, statistics)

    def classifier(self, total: Sums) -> Linear:
        """Return the discriminant of all samples, by the first of the features side by side."""
        views = self.task.views
        return discriminant(total.view(0, views), self.options.first, self.task.dtype).beside(0, views)

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Make the classifiers of all, and of the client; before there are others, of its own samples alone."""
        dtype, K = self.task.dtype, self.task.num_classes
        if not self.mixes and message is not None:
            means = Prototypes.received(message["means"], message["classes"], K)
            shared, by = Linear.named(super().receive(local, message)), self.offset(local, means)
            return {**centring.place_classifier(shared, by).tensors(dtype), "means": means.rows + by.to(means.rows)}
        features, labels = self.samples(local)
        own = Sums.of(features, labels, K, second=True)
        total, _, everyone = (own, None, None) if message is None else self.sent_by_all(message)
        by = self.offset(local, total.means)
        every = {"means": (total.means.rows + by).to(dtype)}
        if not self.mixes:
            return {**centring.place_classifier(self.classifier(total), by).tensors(dtype), **every}
        own, views = centring.move_sums(own, by) if self.options.centre else own, self.task.views
        pools = Pools.alone(own, views) if message is None else self.pools(local, own, message, by)
        choice = choose(pools, features - by, labels, self.options.shrinkages, dtype)
        near = {**pools.distances(features - by, labels, choice, dtype), "choice": choice.tensor(views)}
        near["centres"] = near["centres"] + by[part_of(len(by), choice.mixture.view, views)].to(dtype)
        mixed = centring.place_classifier(pools.classifier(choice.mixture, dtype), by)
        shared = mixed if everyone is None else centring.place_classifier(everyone, by)
        return {**shared.tensors(dtype), **every, **mixed.tensors(dtype, "own_"), **near}

    def offset(self, local: Local, means: Prototypes) -> Tensor:
        """Return ``b_i`` of what a client reports, ``(d,)`` float64; 0 if features are not centred."""
        if not self.options.centre:
            return torch.zeros(self.task.feature_dim, dtype=torch.float64)
        own = self.own_sums(local, among=self.reported(local) & means.present.cpu())
        return centring.offset(own, means.rows.double().cpu())

    def _unpack(self, message: Payload) -> tuple[Sums, Tensor, Linear]:
        """Return the sums that a broadcast holds, the scatter about clients' class means, and the classifier."""
        upload = {name: tensor.cpu() for name, tensor in message.items()} | {"samples": message["counts"].sum()}
        total = self.sums_of(upload)
        scatter = symmetric(upload["within"].double(), self.task.feature_dim, self.task.views)
        return total, scatter * float(total.counts.sum()), self.classifier(total)

    def pools(self, local: Local, own: Sums, message: Payload, by: Tensor) -> Pools:
        """Return the client's sums, and those of all others: all that the server has less its own.

        Args:
            by: Subtracted from the features of ``own``.
        """
        total, scatter, _ = self.sent_by_all(message)
        reported, mine = self.reported(local), own
        if bool((reported != (own.counts > 0)).any()):
            mine = centring.move_sums(self.own_sums(local, among=reported), by)
        # The server may have counted a part of them alone (robust.weight).
        share = min(1.0, float(message["most"]) / max(1.0, float(mine.counts.sum())))
        rest = total.plus(mine, -share)
        if not bool(local.state["sent"]) or bool((rest.counts <= -1).any()):
            return Pools(own, total, scatter, self.task.views)
        known = rest.counts >= 0.5
        rest = rest._replace(counts=rest.counts * known, sums=rest.sums * known.unsqueeze(-1))
        return Pools(own, rest, scatter - share * mine.scatter, self.task.views)

    def head(self, classifier: Linear, features: Tensor, state: Tensors) -> Tensor:
        """Return log-posteriors of the client's classes, up to a constant."""
        return within(classifier.scores(features) + state["prior"], classifier.present, state["own"])

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Log-likelihoods with and without the client's log-prior, and −‖φ − μ_k‖²."""
        features = model(batch.x).features
        shared = Linear.named(received)
        own = Linear.named(received, "own_") if self.mixes else shared
        return {
            "head": self.head(own, features, state),
            "global_model": shared.scores(features),
            "nearest": closeness(features, Prototypes(received["means"], received["present"])),
        }

    def typical(
        self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors, rule: str
    ) -> Tensor | None:
        """Compare distances from class means with those of the client's own samples."""
        if "metric" not in received:
            return None
        own = state["own"] & received["own_present"]
        return typical(
            model(batch.x).features, received, own if rule == HEAD.name and own.any() else received["present"]
        )

    # The server.

    def combine(self, parts: Iterable[Sums]) -> tuple[Sums, Linear]:
        """Return the sums of all features, less their clients' offsets if these are to be centred."""
        if not self.options.centre:
            return super().combine(parts)
        seen: list[tuple[Tensor, Tensor]] = []

        def note_choices() -> Iterator[Sums]:
            for part in parts:
                seen.append((part.counts, part.sums.sum(0)))
                yield part

        total = centring.centre_sums(super().combine(note_choices())[0], *zip(*seen, strict=True))
        return total, self.classifier(total)

    def conclude(self, held: Tensors, total: Sums, classifier: Linear) -> Tensors:
        """Return the server's state, with the sums of all if clients need them."""
        state = super().conclude(held, total, classifier)
        if not self.mixes:
            return state
        d, n, most = self.task.feature_dim, total.counts.sum().clamp(min=1), total.counts.sum()
        scatter = total.moment.new_zeros(d, d)
        if not self.task.summed:
            most = total.counts.new_zeros(())
            for part in self.parts(held):
                scatter += part.scatter
                most = torch.maximum(most, part.counts.sum())
        else:
            for name, sent in held.items():
                if name.startswith("within."):
                    samples = held[f"samples.{name.partition('.')[2]}"]
                    scatter += symmetric(sent.double(), d, self.task.views) * float(samples)
        whole = {"moment": total.moment, "within": scatter}
        squares = {name: triangle(square, self.task.views) / n for name, square in whole.items()}
        return {
            **state,
            **({} if self.task.summed else self._resembling(held, scatter / n)),
            "counts": total.counts.long(),
            "most": most.long(),
            **{name: square.to(self.task.dtype) for name, square in squares.items()},
        }

    def _resembling(self, held: Tensors, covariance: Tensor) -> Tensors:
        """Return who resembles whom, of clients in the order of their names."""
        if not 0 < len(senders(held)) <= SHOWN:
            return {}
        parts = list(self.parts(held))
        counts, means = torch.stack([p.counts for p in parts]), torch.stack([p.means.rows for p in parts])
        square = max(part.square for part in parts)
        apart = resemblance(counts, means, covariance, floor(square, self.task.dtype))
        return {"apart": apart.to(self.task.dtype)}

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload | None:
        """Send the classifier, or the sums of all."""
        message = super().broadcast(server, round_number, client)
        if message is None:
            return None
        classes = message["classes"]
        means = server["prototypes"][classes]
        if not self.mixes:
            return {**message, "means": means}
        squares = {name: server[name] for name in ("most", "moment", "within")}
        return {"classes": classes, "means": means, "counts": server["counts"][classes], **squares}
