"""FedGH: the server trains one head for all clients, on their class means.

Yi, Wang, Liu, Shi and Yu, "FedGH: Heterogeneous Federated Learning with Generalized Global Header", ACM MM 2023.

The paper's text could not be read; the steps are those of its abstract and of public code, whose settings differ:
the server's learning rate and epochs are not confirmed. The authors' released code never changes the header (the
server steps another optimiser), so it measures a fixed random head: here that is ``server_epochs = 0``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from protofed.compute.seeding import generator
from protofed.errors import ModelError
from protofed.methods import register
from protofed.methods.contract import Aggregate, Local, Method, SplitModel, Statistics, Tensors, Traits, Upload
from protofed.methods.parts.nearest import class_statistics
from protofed.methods.parts.training import linear_layer, sound, train_linear
from protofed.methods.parts.weights import load_weights
from protofed.options import Options, remote
from protofed.prototypes.means import class_means
from protofed.wire.schema import Payload, Schema, prototype_schema, weight_schema


@dataclass(frozen=True)
class FedGHOptions(Options):
    """Hyperparameters."""

    server_lr: float = remote(0.01, "learning rate of the SGD that trains the header", above=0)
    server_epochs: int = remote(
        1,
        "its epochs over the uploaded pairs; 0 leaves the header random, as the authors' released code does",
        least=0,
    )
    server_batch_size: int = remote(10, "pairs per server step", least=1)
    prototypes: Literal["after", "during"] = remote(
        "after", "class means from a pass after training, or from the training steps of the last local epoch"
    )


@register
class FedGH(Method[FedGHOptions]):
    """Class means ``p_ic`` go up, the header ``φ`` comes down and replaces every client's head.

    Server state: the header's ``weight`` ``(K, d)`` and ``bias`` ``(K,)``, which live on from round to round.
    """

    name = "fedgh"
    summary = "one head for all clients, trained by the server on their class means"
    reference = "Yi et al., ACM MM 2023, arXiv 2303.13137"
    Options = FedGHOptions

    @classmethod
    def traits(cls, options: FedGHOptions) -> Traits:
        """Training needs every single pair."""
        return Traits(exchanges="prototypes", up="K_i·d", down="d·K + K", alike="features")

    @property
    def upload_schema(self) -> Schema:
        """``k`` class means and their classes."""
        return prototype_schema(self.task.num_classes, "d", {"d": self.task.feature_dim})

    @property
    def broadcast_schema(self) -> Schema:
        """The header."""
        return weight_schema(self.server_state(), self.task.num_classes)

    # The client.

    def extend(self, model: SplitModel) -> None:
        """Refuse a head that cannot take the header's bias."""
        if model.head.bias is None:
            raise ModelError("fedgh shares a head with a bias, but this model's head has none")

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Take over the header."""
        if message is not None:
            load_weights(local.model.head, message)
        return {}

    # Local training is cross-entropy through extractor and head, as Method has it.

    @property
    def statistics(self) -> Statistics:
        """Class means are means over the training data."""
        return class_statistics(self.task.num_classes, self.options.prototypes)

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``p_ic``, the mean feature of each class present."""
        rows, classes = class_means(statistics["sums"], statistics["counts"]).to_send()
        return {"classes": classes, "prototypes": rows}

    # The server.

    def server_state(self) -> Tensors:
        """Start with a random header."""
        source = generator(self.task.seed, "header")
        return linear_layer(self.task.feature_dim, self.task.num_classes, source, self.task.dtype)

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload:
        """Send the header."""
        return dict(server)

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """``min_φ Σ CE(g_φ(p_ic), c)`` over all pairs, one for each client and class, by SGD.

        The logit of a class that nobody reports is only pushed down. A header that diverges is not kept.
        """
        payloads = [upload.payload for upload in uploads]
        labels = torch.cat([p["classes"] for p in payloads]) if payloads else torch.zeros(0)
        if not len(labels):
            return Aggregate(server, {})
        prototypes = torch.cat([p["prototypes"] for p in payloads])
        o, order = self.options, generator(self.task.seed, "server training", round_number)
        sgd, plan = partial(torch.optim.SGD, lr=o.server_lr), (o.server_epochs, o.server_batch_size)
        header, losses = train_linear(server, prototypes, labels, sgd, plan, order)
        if not sound(header):
            return Aggregate(server, {"header_diverged": True})
        return Aggregate(header, {"header_loss_first": losses[0], "header_loss_last": losses[-1]} if losses else {})
