"""FixedETF: every client pulls its features towards the same well-spread directions; nothing is sent.

A control: does exchanging prototypes help at all? GFPL's ablation "w/o PFG" (Table 2) is a close relative.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from protofed.methods import register
from protofed.methods.contract import Batch, Local, Method, SplitModel, Tensors, Terms, Traits
from protofed.methods.parts.nearest import nearest_scores, pulled
from protofed.methods.parts.prior import PrivateHead, SoftmaxOptions, own_classes
from protofed.methods.traits import GLOBAL, GLOBAL_OWN
from protofed.options import remote
from protofed.prototypes.etf import spread_directions
from protofed.prototypes.table import Prototypes
from protofed.wire.schema import Payload


@dataclass(frozen=True)
class FixedETFOptions(SoftmaxOptions):
    """Hyperparameters."""

    lambda_: float = remote(1.0, "weight λ of the prototype term", least=0)
    gamma: float = remote(100.0, "length γ of the targets, as ProtoNorm's upscaling", least=0)


@register
class FixedETF(PrivateHead[FixedETFOptions], Method[FixedETFOptions]):
    """``CE + λ·MSE(f(x), γ·z_y)`` with a simplex ETF ``z`` that all derive from the seed (spread, where K > d)."""

    name = "fixed_etf"
    summary = "no communication: all clients regularise towards the same seeded simplex ETF"
    Options = FixedETFOptions

    @classmethod
    def traits(cls, options: FixedETFOptions) -> Traits:
        """The head; the nearest target over all classes, or over the client's own."""
        return Traits(rules=options.head_rules(GLOBAL, GLOBAL_OWN))

    def client_state(self, counts: Tensor) -> Tensors:
        """Remember the classes that the client holds, and if need be how often."""
        return own_classes(counts, self.task.dtype, balanced=self.options.balanced)

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Derive the targets of all classes, in the dimension of the client's features."""
        present = torch.ones(self.task.num_classes, dtype=torch.bool)
        return Prototypes(self.directions(local.model.feature_dim), present).scaled(self.options.gamma).tensors()

    def directions(self, d: int) -> Tensor:
        """Return ``z``, ``(K, d)`` unit rows."""
        return spread_directions(self.task.num_classes, d, self.task.seed, dtype=self.task.dtype)

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """FedProto's, towards the fixed targets."""
        return pulled(model, batch, received, state, self.options.lambda_)

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Logits of the head, or −‖f(x) − C_j‖² of the targets."""
        own = Prototypes(torch.zeros_like(received["prototypes"]), state["own"])
        return nearest_scores(model(batch.x), state, Prototypes.of(received), own)
