"""FedFA: feature anchors that pull the features of all clients together and keep their classifiers in line.

Zhou et al., "FedFA: Federated Learning with Feature Anchors to Align Features and Classifiers for Heterogeneous
Data", IEEE Transactions on Mobile Computing 23(6), 2024. The formulas are from the authors' code, as the paper's
body could not be read. That code also calibrates once per epoch, and takes means of batches, with which anchors of
rare classes shrink; both are left out. GFPL counts FedFA as FedAvg, without the anchors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.methods import register
from protofed.methods.contract import Phase, Round, Statistics, Terms, Traits, Update
from protofed.methods.fedavg import FedAvg, FedAvgOptions
from protofed.methods.given import Batch, Local, SplitModel, Tensors
from protofed.methods.parts.nearest import class_statistics
from protofed.methods.parts.weights import with_samples
from protofed.options import remote
from protofed.prototypes.means import class_means, class_sums
from protofed.wire.schema import Field, Payload, Schema

CALIBRATION = {"name": "Adam", "lr": 1e-3}


@dataclass(frozen=True)
class FedFAOptions(FedAvgOptions):
    """Hyperparameters."""

    lambda_: float = remote(0.1, "weight λ of the pull towards the anchors", least=0)
    calibration: Literal["after", "before", "none"] = remote(
        "after", "when the head is fitted to the anchors: after each step on a batch, before it, or never"
    )


@register
class FedFA(FedAvg[FedFAOptions]):
    """One step on ``w`` with features pulled to their anchors, one on the head with the anchors as samples.

    Anchors ``a_c`` stay as received during a round; every client keeps a running ``â_c`` of its own classes and
    uploads it. The server averages anchors like weights, so a class that no client holds keeps its anchor. Server
    state: the weights and ``anchors`` ``(K, d)``.
    """

    name = "fedfa"
    summary = "FedAvg with feature anchors shared by all clients"
    reference = "Zhou et al., IEEE TMC 2024, arXiv 2211.09299"
    Options = FedFAOptions

    @classmethod
    def traits(cls, options: FedFAOptions) -> Traits:
        """Anchors travel with the weights."""
        return replace(super().traits(options), up="|w| + K·d", down="|w| + K·d")

    @cached_property
    def initial(self) -> Tensors:
        """``w^0`` and the first anchors; both are averaged."""
        return {**super().initial, "anchors": self.first_anchors()}

    @cached_property
    def upload_schema(self) -> Schema:
        """As FedAvg; anchors are of single classes."""
        K, d = self.task.num_classes, self.task.feature_dim
        return with_samples(self.broadcast_schema, self.options.weighting, anchors=Field((K, d), by_class=True))

    def first_anchors(self) -> Tensor:
        """Return distinct random one-hot vectors ``(K, d)``, or random directions of length 1 where K > d."""
        K, d = self.task.num_classes, self.task.feature_dim
        g = generator(self.task.seed, "anchors", K, d)
        if d < K:
            drawn = torch.randn(K, d, generator=g, dtype=torch.float64)
            return F.normalize(drawn, dim=-1).to(self.task.dtype)
        return F.one_hot(torch.randperm(d, generator=g)[:K], d).to(self.task.dtype)

    def global_weights(self, received: Tensors) -> Tensors:
        """Leave out the anchors."""
        return {n: w for n, w in super().global_weights(received).items() if n != "anchors"}

    # The client.

    def client_state(self, counts: Tensor) -> Tensors:
        """Start the running anchors ``â`` at the first anchors."""
        return {"anchors": self.first_anchors()}

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Keep ``w^t`` and ``a^t``."""
        received = super().receive(local, message)
        return received if message is not None else {**received, "anchors": self.first_anchors()}

    def begin(self, local: Local) -> None:
        """Start from ``w^t``, and ``â`` from ``a``."""
        super().begin(local)
        local.state["anchors"] = local.received["anchors"].clone()

    def round(self, number: int) -> Round:
        """For each batch a step on all weights and one on the head, whose Adam starts afresh in every round."""
        train, calibrate = (
            Update(self.loss),
            Update(self.calibration, trainable=lambda name: name.startswith("head."), optimizer=CALIBRATION),
        )
        orders = {"after": (train, calibrate), "before": (calibrate, train), "none": (train,)}
        return Round((Phase(orders[self.options.calibration], after=self.follow),))

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """``CE + (λ/K)·Σ_{c in the batch} mean_{b: y_b = c} ‖f(x_b) − a_c‖²``."""
        output = model(batch.x)
        K = self.task.num_classes
        squared = (output.features - received["anchors"][batch.y]).square().sum(-1)
        means, _ = class_means(*class_sums(squared.unsqueeze(-1), batch.y, K, batch.weight))
        return {
            "cross_entropy": batch.cross_entropy(output.logits),
            "anchor": self.options.lambda_ / K * means.sum(),
        }, output

    def calibration(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """``CE(g(a_c), c)`` over all K anchors."""
        anchors = received["anchors"]
        classes = torch.arange(len(anchors), device=anchors.device)
        return {"calibration": F.cross_entropy(model.head(anchors), classes)}, None

    @property
    def statistics(self) -> Statistics:
        """Of the features of each epoch's steps."""
        return class_statistics(self.task.num_classes, "during")

    def follow(self, local: Local, statistics: Tensors) -> None:
        """``â_c ← ½·â_c + ½·m_c`` with the means ``m_c`` of the client's own classes."""
        if statistics:
            m, held = class_means(statistics["sums"], statistics["counts"])
            old = local.state["anchors"]
            local.state["anchors"] = torch.where(held.unsqueeze(-1), 0.5 * old + 0.5 * m, old)

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``w_i``, ``â`` and ``n_i``."""
        return {**super().upload(local, statistics), "anchors": local.state["anchors"]}
