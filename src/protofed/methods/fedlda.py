"""FedLDA: linear discriminant analysis of the samples of all clients, in one round.

Clients send class means and their second moment, from which follow the class means and the covariance within
classes of all samples together, exactly. Related: FedCGS (Guan et al., "Capture Global Feature Statistics for
One-Shot Federated Learning", AAAI 2025) and GH-OFL (Turazza et al., "The Gaussian-Head OFL Family", ICLR 2026). The
shrinkage is that of Chen et al., "Shrinkage Algorithms for MMSE Covariance Estimation", IEEE TSP 2010.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from protofed.errors import ConfigError
from protofed.methods import register
from protofed.methods.contract import Aggregate, Batch, Local, Task, Tensors, Traits, Upload
from protofed.methods.parts import centring
from protofed.methods.parts.moments import LARGEST, ClosedForm, Linear, Sums, solve, triangle, within
from protofed.options import Options, option
from protofed.prototypes.inference import closeness, most_likely
from protofed.prototypes.table import Prototypes
from protofed.runs.rules import NEAREST
from protofed.wire.schema import Field, Payload, Schema

if TYPE_CHECKING:
    from protofed.models import SplitModel

Shrinkage = float | Literal["oas"]
SHRINKAGE = "s of the covariance (1 - s)·Σ + s·tr(Σ)/d·I: "
SHRINKAGES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Values of ``s`` among which validation samples choose."""
KAPPAS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.0)
"""Values of ``κ`` among which validation samples choose; the first of equally good ones."""


def discriminant(total: Sums, shrinkage: Shrinkage, dtype: torch.dtype) -> Linear:
    """Return the classifier with the scores ``μ_kᵀΣ⁻¹φ − ½·μ_kᵀΣ⁻¹μ_k``.

    They are log-likelihoods of Gaussians with one covariance, up to what all classes share. For the sake of small
    numbers, the mean of all samples is the origin, which changes no difference of scores. Without any variance,
    Σ is a multiple of I, and the nearest mean the answer.

    Args:
        shrinkage: ``s``, or ``oas``.
        dtype: Type in which moments were sent.
    """
    n = total.counts.sum().clamp(min=1)
    means = total.means
    origin = total.sums.sum(0) / n
    apart = (means.rows - origin) * means.present.unsqueeze(-1)
    weights = solve(shrunk(total.scatter / n, float(n), shrinkage), apart.mT, total.square, dtype).mT
    return Linear(weights, -0.5 * (weights * apart).sum(-1) - weights @ origin, means.present)


def shrunk(covariance: Tensor, n: float, shrinkage: Shrinkage) -> Tensor:
    """Return ``(1 − s)·Σ + s·tr(Σ)/d·I``.

    Args:
        covariance: ``Σ``, ``(d, d)``.
        shrinkage: ``s``, or ``oas``: the oracle approximating shrinkage, which needs nothing but Σ and n.
    """
    variance = covariance.diagonal().mean().clamp(min=0)
    s = oracle(covariance, n) if shrinkage == "oas" else float(shrinkage)
    mixed = (1 - s) * covariance
    mixed.diagonal().add_(s * variance)
    return mixed


def oracle(covariance: Tensor, n: float) -> float:
    """Return the oracle approximating shrinkage (Chen et al., Eq. 23, as scikit-learn has it)."""
    d = len(covariance)
    mean_square, square = float(covariance.square().mean()), float(covariance.diagonal().mean()) ** 2
    apart = (n + 1) * (mean_square - square / d)
    return min(1.0, (mean_square + square) / apart) if apart > 0 else 1.0


SHARES = {0.3: "a third of", 0.1: "a tenth of", 0.03: "a thirtieth of", 0.01: "a hundredth of"}
"""Words for some values of ``κ``."""


def told(kappa: float, shrinkage: Shrinkage, voted: bool) -> str:
    """Return in whole sentences which κ and s apply, and what they mean."""
    share = "others' data do not count"
    if kappa:
        share = f"others' data count {SHARES.get(kappa, f'{kappa:g} times')} a client's own"
    share = "everybody's data count fully" if kappa == 1 else f"your sites differ, {share}" if voted else share
    how = "what Chen et al. compute from the covariance and the number of samples (oas)"
    if shrinkage != "oas":
        how = f"{shrinkage:g}: so much of the covariance gives way to an equal variance of all features"
    who = "Validation samples chose" if voted else "Not chosen by validation samples:"
    return f"{who} κ = {kappa:g}: {share}. The shrinkage is {how}."


@dataclass(frozen=True)
class FedLDAOptions(Options):
    """Hyperparameters."""

    shrinkage: float | Literal["oas", "validation"] = option(
        "oas",
        SHRINKAGE + "oas | NUMBER | validation, that of seven with most hits on validation samples",
        least=0,
        most=1,
    )
    kappa: float | Literal["auto"] = option(
        "auto",
        "κ: how much a sample of another client counts for head: NUMBER | auto, that of six with most hits on "
        "validation samples in a second round, 1 without",
        least=0,
        most=1,
    )
    centre: bool = option(
        False,
        "subtract from a client's features b_i of μ_ik ≈ a_k + b_i, what sets all of its class means apart from "
        "everybody's: for clients whose devices or populations differ; answers are then for its own samples",
    )

    @property
    def choices(self) -> list[tuple[float, Shrinkage]]:
        """Pairs of κ and s among which validation samples choose."""
        kappas = KAPPAS if self.kappa == "auto" else (self.kappa,)
        shrinkages: Sequence[Shrinkage] = SHRINKAGES if self.shrinkage == "validation" else (self.shrinkage,)
        return list(itertools.product(kappas, shrinkages))


@register
class FedLDA(ClosedForm[FedLDAOptions]):
    """One covariance within classes for all samples; priors are the clients' own.

    A client's classifier is that of its own sums and κ times those of all others. Server state, where κ or s is
    chosen or κ is not 1: also ``counts`` ``(K,)``, ``moment`` ``(d·(d + 1)/2,)`` and ``choice``.
    """

    name = "fedlda"
    summary = "linear discriminant analysis on fixed features of all clients: one round, no training"
    reference = "Related to FedCGS (Guan et al., AAAI 2025) and GH-OFL (Turazza et al., ICLR 2026)"
    Options = FedLDAOptions
    second = True

    def __init__(self, options: FedLDAOptions, task: Task) -> None:
        choices = options.choices
        # Hits on validation samples are sent in a round after that of the sums.
        self.choices = choices if task.rounds > 1 else [c for c in choices if c[0] == choices[0][0]]
        self.mixes = len(self.choices) > 1 or self.choices[0][0] != 1
        super().__init__(options, task)
        if task.noise is not None and (self.mixes or not self.declared.sums_only):
            raise ConfigError(
                "privacy.mode=sample: fedlda sends noisy sums once, and no hits on validation samples: set "
                "method.kappa=1, method.centre=false and method.shrinkage=oas or a number"
            )
        if options.shrinkage == "validation" and task.rounds < 2:
            raise ConfigError("method.shrinkage=validation needs a second round for its choice: set rounds=2")

    @classmethod
    def traits(cls, options: FedLDAOptions) -> Traits:
        """A choice by validation samples takes a second round."""
        chooses = len(options.choices) > 1
        found = super().traits(options)
        return replace(
            found,
            down="K·(2·d + 1)" if options.choices == [(1.0, options.shrinkage)] else "K·d + d·(d+1)/2",
            rules=(*found.rules, NEAREST),
            sums_only=not options.centre,
            kept=(*found.kept, "sent"),
            choosing=int(chooses),
            ends="validation samples choose method.kappa or method.shrinkage in a second round" * chooses,
        )

    def check(self, clients: Mapping[str, bool]) -> None:
        """Refuse a choice by validation samples that nobody has."""
        if self.options.shrinkage == "validation" and not any(clients.values()):
            raise ConfigError(
                "method.shrinkage=validation needs validation samples, of which no client has any: set "
                "data.validation_fraction, e.g. 0.2, or method.shrinkage=oas"
            )

    # What crosses the network.

    @cached_property
    def upload_schema(self) -> Schema:
        """Class means, counts and second moment; with a choice, the hits of each on validation samples."""
        schema = super().upload_schema
        assert schema is not None
        fields = dict(schema.fields)
        if len(self.choices) > 1:
            fields["hits"] = Field((1, len(self.choices)), "count", parameter=False, described=False)
        return Schema(fields, schema.num_classes, schema.sizes, schema.limits)

    @cached_property
    def broadcast_schema(self) -> Schema:
        """Class means and the classifier; or, where κ or s is chosen or κ is not 1, the sums and the choice."""
        if not self.mixes:
            schema = super().broadcast_schema
            assert schema is not None
            return self.schema({**self.rows("means"), **schema.fields})
        d = self.task.feature_dim
        return self.schema(
            {
                **self.rows("means"),
                "counts": Field(("k",), "count", parameter=False),
                "moment": Field((d * (d + 1) // 2,), limit=LARGEST**2),
                "choice": Field((), "count", parameter=False),
            }
        )

    # The client.

    def client_state(self, counts: Tensor) -> Tensors:
        """Remember whether the server has the client's sums."""
        return {**super().client_state(counts), "sent": torch.tensor(False)}

    def shifted(self, state: Tensors, counts: Tensor) -> Tensors:
        """Predict with the new frequencies."""
        return {**super().shifted(state, counts), "sent": state["sent"]}

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send the sums, and the hits of each choice on validation samples if there are any."""
        local.state["sent"] = torch.ones_like(local.state["sent"])
        payload = super().upload(local, statistics)
        if len(self.choices) > 1:
            none = torch.zeros(1, len(self.choices), dtype=torch.int64)
            payload["hits"] = local.received.get("hits", none)
        return payload

    def classifier(self, total: Sums) -> Linear:
        """Return the discriminant of all samples, with the first shrinkage."""
        return discriminant(total, self.choices[0][1], self.task.dtype)

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Make the classifiers of all, and of the client: its own samples and κ times the others'.

        Args:
            message: None for the client's own samples alone.
        """
        dtype, K = self.task.dtype, self.task.num_classes
        if not self.mixes and message is not None:
            means = Prototypes.received(message["means"], message["classes"], K)
            shared = Linear.named(super().receive(local, message))
            by = self.offset(local, means)
            return {**centring.placed(shared, by).tensors(dtype), "means": means.rows + by.to(means.rows)}
        own = self.own_sums(local)
        total, choice = (own, 0) if message is None else (self.sums_in(message), int(message["choice"]))
        kappa, shrinkage = self.choices[min(choice, len(self.choices) - 1)]
        by = self.offset(local, total.means)
        shared = centring.placed(discriminant(total, shrinkage, dtype), by)
        received = {**shared.tensors(dtype), "means": (total.means.rows + by).to(dtype)}
        if not self.mixes:
            return received
        own, others = centring.moved(own, by), Sums.none(K, self.task.feature_dim, second=True)
        if message is not None:
            others = self.others(local, own, total, by)
        mixed = centring.placed(discriminant(own.plus(others, kappa), shrinkage, dtype), by)
        received |= mixed.tensors(dtype, "own_")
        if len(self.choices) > 1:
            received["hits"] = torch.zeros(1, len(self.choices), dtype=torch.int64)
            if message is not None:
                received["hits"][0] = torch.tensor(self.hits(local, own, others, by), dtype=torch.int64)
        return received

    def offset(self, local: Local, means: Prototypes) -> Tensor:
        """Return ``b_i`` of what a client reports, ``(d,)`` float64; 0 if features are not centred."""
        if not self.options.centre:
            return torch.zeros(self.task.feature_dim, dtype=torch.float64)
        own = self.own_sums(local, among=self.reported(local) & means.present.cpu())
        return centring.offset(own, means.rows.double().cpu())

    def sums_in(self, message: Payload) -> Sums:
        """Return the sums that a broadcast holds."""
        upload = {name: tensor.cpu() for name, tensor in message.items()} | {"samples": message["counts"].sum()}
        return self.sums_of(upload)

    def others(self, local: Local, own: Sums, total: Sums, by: Tensor) -> Sums:
        """Return the sums of all other clients.

        Args:
            by: Subtracted from the features of ``own``.
        """
        reported, mine = self.reported(local), own
        if bool((reported != (own.counts > 0)).any()):
            mine = centring.moved(self.own_sums(local, among=reported), by)
        if not bool(local.state["sent"]) or bool((mine.counts > total.counts).any()):
            return total
        rest = total.plus(mine, -1.0)
        known = rest.counts > 0
        return rest._replace(sums=rest.sums * known.unsqueeze(-1))

    @torch.no_grad()
    def hits(self, local: Local, own: Sums, others: Sums, by: Tensor) -> list[int]:
        """Count the validation samples of a client that each choice classifies correctly by the rule ``head``.

        Args:
            by: Subtracted from the features of both sums.
        """
        batches = [(local.model(batch.x).features, batch.y) for batch in local.validation()]
        found = []
        for kappa, shrinkage in self.choices if batches else []:
            mixed = centring.placed(discriminant(own.plus(others, kappa), shrinkage, self.task.dtype), by)
            parts = mixed.tensors(self.task.dtype)
            here = Linear.named({name: tensor.to(batches[0][0].device) for name, tensor in parts.items()})
            right = (most_likely(self.head(here, f, local.state)) == y for f, y in batches)
            found.append(sum(int(hit.sum()) for hit in right))
        return found or [0] * len(self.choices)

    def head(self, classifier: Linear, features: Tensor, state: Tensors) -> Tensor:
        """Return log-posteriors of the client's classes, up to a constant."""
        return within(classifier.scores(features) + state["prior"], classifier.present, state["own"])

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Log-likelihoods with and without the client's log-prior, and −‖φ − μ_k‖²."""
        output = model(batch.x)
        features = output.features
        shared = Linear.named(received)
        return {
            "head": self.head(Linear.named(received, "own_") if self.mixes else shared, features, state),
            "global_model": shared.scores(features),
            "nearest": closeness(features, Prototypes(received["means"], received["present"])),
        }

    # The server.

    def combined(self, parts: Iterable[Sums]) -> tuple[Sums, Linear]:
        """Return the sums of all features, less their clients' offsets if these are to be centred."""
        if not self.options.centre:
            return super().combined(parts)
        seen: list[tuple[Tensor, Tensor]] = []

        def noted() -> Iterator[Sums]:
            for part in parts:
                seen.append((part.counts, part.sums.sum(0)))
                yield part

        total = centring.centred(super().combined(noted())[0], *zip(*seen, strict=True))
        return total, self.classifier(total)

    def concluded(self, held: Tensors, total: Sums, classifier: Linear) -> Tensors:
        """Return the server's state, with the sums of all and the choice if clients need them."""
        state = super().concluded(held, total, classifier)
        if not self.mixes:
            return state
        hits = [tensor[0] for name, tensor in held.items() if name.startswith("hits.")]
        votes = torch.stack(hits).sum(0).tolist() if hits else [0]
        choice = torch.tensor(votes.index(max(votes)))
        moment = triangle(total.moment) / total.counts.sum().clamp(min=1)
        return {**state, "counts": total.counts.long(), "moment": moment.to(self.task.dtype), "choice": choice}

    def without(self, server: Tensors, client: str) -> Tensors:
        """Void all votes as well: they were cast on classifiers of sums with the client's."""
        void = {name: torch.zeros_like(t) if name.startswith("hits.") else t for name, t in server.items()}
        return super().without(void, client)

    def broadcast(self, server: Tensors, round: int, client: str | None = None) -> Payload | None:
        """Send the classifier, or the sums of all."""
        message = super().broadcast(server, round, client)
        if message is None:
            return None
        classes = message["classes"]
        means = server["prototypes"][classes]
        if not self.mixes:
            return {**message, "means": means}
        counts = server["counts"][classes]
        return {
            "classes": classes,
            "means": means,
            "counts": counts,
            **{name: server[name] for name in ("moment", "choice")},
        }

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """Describe the chosen κ and s, in figures and in words."""
        state, diagnostics = super().aggregate(server, uploads, round)
        kappa, shrinkage = self.choices[int(state.get("choice", 0))]
        chosen = {} if shrinkage == "oas" else {"shrinkage": shrinkage}
        voted = any(bool(tensor.any()) for name, tensor in state.items() if name.startswith("hits."))
        return Aggregate(state, {"kappa": kappa, **chosen, **diagnostics, "chosen": told(kappa, shrinkage, voted)})
