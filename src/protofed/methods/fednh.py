"""FedNH: a head of unit prototypes that no client trains, moved by the class means of all.

Dai et al., "Tackling Data Heterogeneity in Federated Learning with Class Prototypes", AAAI 2023. The formulas are
from the authors' code, which can also fix the scale, and does not normalise features for Tiny ImageNet; how the
paper spreads prototypes for K > d is not confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofed.compute.seeding import generator
from protofed.methods import register
from protofed.methods.contract import Aggregate, Phase, Round, Statistics, Terms, Traits, Update, Upload
from protofed.methods.fedavg import FedAvg, FedAvgOptions
from protofed.methods.given import Batch, Local, Output, SplitModel, Tensors
from protofed.methods.parts.weights import WeightedMean, weight_of, with_samples
from protofed.methods.traits import Protection
from protofed.options import remote
from protofed.prototypes.etf import spread_directions
from protofed.prototypes.means import class_means, class_sums
from protofed.wire.schema import Field, Payload, Schema, weight_schema

SHORTEST = 1e-6  #: Length below which a mixture of old and new prototype is taken for a rounding error


@dataclass(frozen=True)
class FedNHOptions(FedAvgOptions):
    """Hyperparameters; the authors also clip gradients and decay the learning rate, which is not the method's."""

    weighting: Literal["samples", "uniform"] = remote(
        "uniform", "weight of a client in the mean of θ and s: n_i, or 1"
    )
    rho: float = remote(0.9, "ρ: share of the old prototypes that is kept in a round", least=0, most=1)
    scale: float = remote(20.0, "s at the start (the authors: 1 for a small CNN, 20 for ResNets)", above=0)


class _Scale(nn.Module):
    """The learned scalar s."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.s = nn.Parameter(torch.tensor(value))


@register
class FedNH(FedAvg[FedNHOptions]):
    """Clients train ``θ`` and s with fixed prototypes W for a head; the server averages, and moves W.

    The model's own head takes no part. Server state: ``θ``, s, and W as ``prototypes`` ``(K, d)`` with ``present``.
    """

    name = "fednh"
    summary = "extractor averaged; for a head, unit prototypes that follow the class means of all"
    reference = "Dai et al., AAAI 2023, arXiv 2212.02758"
    Options = FedNHOptions

    @classmethod
    def traits(cls, options: FedNHOptions) -> Traits:
        """Uploads hold the sums of normalised features per class."""
        return replace(
            super().traits(options),
            up="|θ| + 1 + K·d",
            down="|θ| + 1 + K·d",
            protection=Protection(dp_obstacle="its server needs n_ic, which no noise hides"),
        )

    # What crosses the network.

    def shares(self, name: str) -> bool:
        """``θ`` and s."""
        return not name.startswith("head.")

    def extend(self, model: SplitModel) -> None:
        """Add s."""
        model.extras["scale"] = _Scale(self.options.scale)

    def first_model(self) -> SplitModel:
        """Return the first model with s."""
        model = super().first_model()
        self.extend(model)
        return model.to(self.task.dtype)

    @cached_property
    def broadcast_schema(self) -> Schema:
        """``θ``, s and W."""
        K, d = self.task.num_classes, self.task.feature_dim
        return weight_schema(self.initial, K, prototypes=Field((K, d)))

    @cached_property
    def upload_schema(self) -> Schema:
        """``θ`` and s; ``n_ic·µ_ic`` and ``n_ic`` for every class."""
        K, d = self.task.num_classes, self.task.feature_dim
        sums, counts = Field((K, d), sums=True), Field((K,), "count", parameter=False)
        return with_samples(weight_schema(self.initial, K), self.options.weighting, means=sums, counts=counts)

    # The client.

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Keep ``θ``, s and W; before the first broadcast, the first W."""
        received = super().receive(local, message)
        return received if message is not None else {**received, "prototypes": self.directions}

    def round(self, number: int) -> Round:
        """Train ``θ`` and s, with W fixed."""
        return Round((Phase((Update(self.loss, trainable=self.shares),)),))

    def cosines(self, features: Tensor, prototypes: Tensor) -> Tensor:
        """Return ``(f/‖f‖)·Wᵀ``, ``(B, K)``, of features ``(B, d)`` and prototypes ``(K, d)``."""
        return F.normalize(features, dim=-1, eps=1e-12) @ prototypes.T

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Cross-entropy of the logits ``s·(f/‖f‖)·Wᵀ``."""
        output = model(batch.x)
        logits = self.scale(model) * self.cosines(output.features, received["prototypes"])
        return {"cross_entropy": batch.cross_entropy(logits)}, output

    def scale(self, model: SplitModel) -> Any:
        """Return a model's s."""
        return model.extras["scale"].s

    @property
    def statistics(self) -> Statistics:
        """Class means are of the trained model, in eval mode."""
        return Statistics(self.sums)

    def sums(self, output: Output, batch: Batch) -> Tensors:
        """Return sums of ``f/‖f‖`` and counts per class."""
        unit = F.normalize(output.features, dim=-1, eps=1e-12)
        sums, counts = class_sums(unit, batch.y, self.task.num_classes, batch.weight)
        return {"sums": sums, "counts": counts}

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``θ_i``, ``s_i``, and for each class ``n_ic·µ_ic`` with ``µ_ic = normalise(mean f/‖f‖)``."""
        means, _ = class_means(statistics["sums"], statistics["counts"])
        means = F.normalize(means, dim=-1, eps=1e-12) * statistics["counts"].unsqueeze(-1)
        return {**super().upload(local, statistics), "means": means, "counts": statistics["counts"].long()}

    def classify(self, model: Callable[[Tensor], Output], batch: Batch, received: Tensors) -> Tensor:
        """Return the cosines with the prototypes."""
        return self.cosines(model(batch.x).features, received["prototypes"])

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """The logits ``s·(f/‖f‖)·Wᵀ`` of either model, each with its own s."""
        cosines = super().scores(model, batch, received, state)
        shared = received.get("extras.scale.s", self.options.scale)
        return {"global_model": shared * cosines["global_model"], "head": self.scale(model) * cosines["head"]}

    # The server.

    @cached_property
    def directions(self) -> Tensor:
        """The first W, ``(K, d)`` unit rows."""
        K, d = self.task.num_classes, self.task.feature_dim
        if d < K:
            return spread_directions(K, d, self.task.seed, dtype=self.task.dtype)
        g = generator(self.task.seed, "orthogonal prototypes", K, d)
        Q, R = torch.linalg.qr(torch.randn(d, K, generator=g, dtype=torch.float64))
        Q = Q * torch.where(R.diagonal() < 0, -1.0, 1.0)  # the same on any LAPACK
        result: Tensor = Q.T.contiguous().to(self.task.dtype)
        return result

    def server_state(self) -> Tensors:
        """Start from one ``θ``, s and W; every class has a prototype from the start."""
        present = torch.ones(self.task.num_classes, dtype=torch.bool)
        return {**self.initial, "prototypes": self.directions, "present": present}

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """Average ``θ`` and s; ``W_c ← normalise(ρ·W_c + (1−ρ)·normalise(Σ n_ic·µ_ic))`` where c is reported."""
        weights = WeightedMean()
        W = server["prototypes"].double()
        sums, counts = torch.zeros_like(W), torch.zeros(len(W), dtype=torch.int64)
        for upload in uploads:
            weights.add(
                {n: upload.payload[n] for n in self.initial}, weight_of(upload.payload, self.options.weighting)
            )
            sums += upload.payload["means"]
            counts += upload.payload["counts"]
        rho = self.options.rho
        between = rho * W + (1 - rho) * F.normalize(sums, dim=-1, eps=1e-12)
        # Where old and new cancel out there is no direction to move to.
        moves = (counts > 0) & (between.norm(dim=-1) > SHORTEST)
        W = torch.where(moves.unsqueeze(-1), F.normalize(between, dim=-1), W).to(server["prototypes"].dtype)
        averaged = weights.mean({n: server[n] for n in self.initial})
        scale = float(averaged["extras.scale.s"])
        return Aggregate({**server, **averaged, "prototypes": W}, {"scale": scale})
