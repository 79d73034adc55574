"""FedTGP: the server trains global prototypes with an adaptive margin instead of averaging.

Zhang, Liu, Hua and Cao, "FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive Learning for
Data and Model Heterogeneity in Federated Learning", AAAI 2024.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from protofed.methods import register
from protofed.methods.contract import Aggregate, Tensors, Traits, Upload
from protofed.methods.fedproto import FedProto, FedProtoOptions
from protofed.methods.parts.trainable import first_network, pairs, train_network
from protofed.options import fixed, remote
from protofed.prototypes.contrastive import adaptive_margin, contrast, hinge_prototypes
from protofed.prototypes.table import Prototypes


@dataclass(frozen=True)
class FedTGPOptions(FedProtoOptions):
    """Hyperparameters; the paper's λ and S are those of its scripts."""

    lambda_: float = remote(10.0, "weight λ of the prototype term", least=0)
    aggregation: Literal["mean"] = fixed("mean")
    loss: Literal["softmax", "hinge"] = remote(
        "softmax",
        "server objective: adaptive-margin contrastive learning, or squared attraction and pairwise hinge",
    )
    server_epochs: int = remote(100, "epochs S over the uploaded prototypes per round (softmax)", least=0)
    server_lr: float = remote(0.01, "learning rate of the server's SGD (softmax)", above=0)
    server_batch_size: int = remote(32, "uploads per server step (softmax)", least=1)
    margin_cap: float = remote(100.0, "cap τ of the adaptive margin (softmax)", least=0)
    margin: float = remote(
        1.0, "scale of all pairwise margins, in average distances between classes (hinge)", least=0
    )


@register
class FedTGP(FedProto[FedTGPOptions]):
    """FedProto's client; the server keeps trainable prototypes ``P_j = F(e_j)`` across rounds."""

    name = "fedtgp"
    summary = "global prototypes trained on the server with an adaptive margin"
    reference = "Zhang et al., AAAI 2024, arXiv 2401.03230"
    Options = FedTGPOptions

    @classmethod
    def traits(cls, options: FedTGPOptions) -> Traits:
        """Training needs every single upload."""
        found = super().traits(options)
        alone = found if found.personal else replace(found, aggregation="single")
        return alone.protecting(dp_obstacle=found.protection.dp_obstacle or None)

    def server_state(self) -> Tensors:
        """Start with a random prototype network (softmax)."""
        return super().server_state() | (first_network(self.task) if self.options.loss == "softmax" else {})

    def update(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """Train on all uploads; classes nobody reports keep their last global prototype."""
        prototypes, labels = pairs(uploads, self.task)
        if not len(labels):
            return Aggregate(server, {})
        if self.options.loss == "hinge":
            hinge = hinge_prototypes(prototypes, labels, self.task.num_classes, margin=self.options.margin)
            diagnostics = {"hinge_loss_first": hinge.losses[0], "hinge_loss_last": hinge.losses[-1]}
            return Aggregate(self.merge(server, Prototypes(hinge.prototypes, hinge.present)), diagnostics)
        return self._contrast(server, prototypes, labels, round_number)

    def _contrast(self, server: Tensors, prototypes: Tensor, labels: Tensor, round_number: int) -> Aggregate:
        """Adaptive-margin contrastive learning: margin δ once per round, then S epochs of SGD."""
        o = self.options
        margin = adaptive_margin(prototypes, labels, self.task.num_classes, cap=o.margin_cap)
        plan = o.server_epochs, o.server_lr, o.server_batch_size
        state, new, losses = train_network(
            server, prototypes, labels, contrast(margin), plan, self.task, round_number
        )
        diagnostics: dict[str, float] = {"acl_margin": margin}
        if len(losses):
            diagnostics |= {"acl_loss_first": float(losses[0]), "acl_loss_last": float(losses[-1])}
        return Aggregate(self.merge(state, new), diagnostics)
