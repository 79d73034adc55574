"""FedORGP: the server trains global prototypes to be orthogonal, and clients turn their features towards them.

Guo, Luan, Li, Zhao and Jiang, "FedORGP: Guiding Heterogeneous Federated Learning with Orthogonality Regularization
on Global Prototypes", 2025. Equation numbers are the paper's.

The weights are those of the authors' scripts. Their later code also weighs similar classes more and leaves outliers
out of class means, of which the paper knows nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from protofed.methods import register
from protofed.methods.contract import Aggregate, Batch, SplitModel, Tensors, Traits, Upload
from protofed.methods.fedproto import FedProto, FedProtoOptions
from protofed.methods.parts.nearest import nearest_scores
from protofed.methods.parts.trainable import first_network, pairs, train_network
from protofed.options import fixed, remote
from protofed.prototypes.contrastive import orthogonality
from protofed.prototypes.geometry import unit_vectors
from protofed.prototypes.inference import Distance, alignment
from protofed.prototypes.table import Prototypes


@dataclass(frozen=True)
class FedORGPOptions(FedProtoOptions):
    """Hyperparameters."""

    lambda_: float = remote(10.0, "weight λ_c of the clients' term 1 − cos(f(x), P_y) (Eq. 8)", least=0)
    distance: Distance = remote("cosine", "ρ of that term: 1 − cos, or one of FedProto's")
    aggregation: Literal["mean"] = fixed("mean")
    attraction: float = remote(1.0, "weight λ_s of the server's 1 − s: prototypes of one class (Eq. 5)", least=0)
    separation: float = remote(10.0, "weight γ of its d: prototypes of different classes (Eq. 5)", least=0)
    server_epochs: int = remote(1, "epochs over the uploaded prototypes per round", least=0)
    server_lr: float = remote(0.01, "learning rate of the server's SGD", above=0)
    server_batch_size: int = remote(32, "uploads per server step", least=1)


@register
class FedORGP(FedProto[FedORGPOptions]):
    """FedProto's client with an angular pull; the server keeps trainable prototypes as FedTGP's does.

    Rules of prototypes compare directions: the largest cosine.
    """

    name = "fedorgp"
    summary = "global prototypes trained to be orthogonal, and an angular pull towards them"
    reference = "Guo et al., 2025, arXiv 2502.16119"
    Options = FedORGPOptions

    @classmethod
    def traits(cls, options: FedORGPOptions) -> Traits:
        """Training needs every single upload."""
        found = super().traits(options)
        alone = found if found.personal else replace(found, aggregation="single")
        return alone.protecting(dp_obstacle=found.protection.dp_obstacle or None)

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Logits of the head, and 2·cos(f(x), C_j) − 2 of prototypes."""
        return nearest_scores(model(batch.x), state, Prototypes.of(received), Prototypes.of(state), alignment)

    def server_state(self) -> Tensors:
        """Start with a random prototype network."""
        return super().server_state() | first_network(self.task)

    def update(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """Eq. 3 to 5; classes that nobody reports keep their last global prototype."""
        o = self.options
        prototypes, labels = pairs(uploads, self.task)
        if not len(labels):
            return Aggregate(server, {})
        objective = orthogonality(o.attraction, o.separation)
        plan = o.server_epochs, o.server_lr, o.server_batch_size
        state, new, losses = train_network(server, prototypes, labels, objective, plan, self.task, round_number)
        directions = unit_vectors(new.rows[new.present])
        away = (directions @ directions.T).fill_diagonal_(0).abs()
        diagnostics = {"largest_cosine": float(away.max())}
        if len(losses):
            diagnostics |= {"server_loss_first": float(losses[0]), "server_loss_last": float(losses[-1])}
        return Aggregate(self.merge(state, new), diagnostics)
