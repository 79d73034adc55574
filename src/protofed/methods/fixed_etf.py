"""FixedETF: every client pulls its features towards the same well-spread directions; nothing is sent.

A control that none of the papers prints: does exchanging prototypes help at all?
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from protofed.methods import register
from protofed.methods._prototypes import PrototypeMethod, PrototypeOptions
from protofed.methods.contract import Aggregate, Batch, Local, Tensors, Upload
from protofed.options import option
from protofed.prototypes.etf import spread_directions
from protofed.prototypes.table import Prototypes
from protofed.wire.schema import Payload

if TYPE_CHECKING:
    from protofed.models import SplitModel


@dataclass(frozen=True)
class FixedETFOptions(PrototypeOptions):
    """Hyperparameters."""

    gamma: float = option(100.0, "length γ of the targets, as ProtoNorm's upscaling")


@register
class FixedETF(PrototypeMethod):
    """``CE + λ·MSE(f(x), γ·z_y)`` with a simplex ETF ``z`` that all derive from the seed (spread, where K > d)."""

    name = "fixed_etf"
    summary = "no communication: all clients regularise towards the same seeded simplex ETF"
    exchanges = "nothing"
    up = "0"
    down = "0"
    Options = FixedETFOptions
    same_feature_dim = False  # each client derives targets of its own dimension

    @property
    def upload_schema(self) -> None:
        """Nothing up."""
        return

    @property
    def broadcast_schema(self) -> None:
        """Nothing down."""
        return

    def client_state(self, counts: Tensor) -> Tensors:
        """Remember which classes the client holds; it keeps no prototypes of its own."""
        return {"own": counts > 0}

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Derive the targets from the seed, for every class."""
        directions = spread_directions(
            self.task.num_classes, local.model.feature_dim, self.task.seed, dtype=self.task.dtype
        )
        everyone = torch.ones(self.task.num_classes, dtype=torch.bool)
        return Prototypes(directions, everyone).scaled(self.gamma).tensors()

    @property
    def rules(self) -> tuple[str, ...]:
        """As FedProto's, without own prototypes."""
        return ("head", "global", "global_own")

    def predict(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """The head, or the nearest target."""
        own = Prototypes(torch.zeros_like(received["prototypes"]), state["own"])
        predicted = super().predict(model, batch, received, own.tensors())
        return {rule: predicted[rule] for rule in self.rules}

    def server_state(self) -> Tensors:
        """Nothing to keep."""
        return {}

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """Nothing arrives."""
        return Aggregate(server, {})
