"""FedSA: semantic anchors, which hardly move, take the place of averaged prototypes.

Zhou, Qu, You, Zhou, Tang, Zheng, Cai and Wu, "FedSA: A Unified Representation Learning via Semantic Anchors for
Prototype-based Federated Learning", AAAI 2025.

Formulas and weights are those of the authors' code. It predicts by the nearest mean of the clients' prototypes,
which ``nearest = "means"`` sends beside the anchors; otherwise the rule ``global`` is the nearest anchor.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.methods import register
from protofed.methods.contract import Aggregate, Batch, Local, SplitModel, Task, Tensors, Terms, Traits, Upload
from protofed.methods.fedproto import FedProto, FedProtoOptions
from protofed.methods.parts.nearest import mean_of, nearest_scores, no_rows
from protofed.methods.parts.training import linear_layer
from protofed.options import fixed, remote
from protofed.prototypes.geometry import pairwise_distances
from protofed.prototypes.table import Prototypes
from protofed.wire.schema import Field, Payload, Schema

EPSILON = 1e-5  #: Added to the variance by the batch normalisation of the first anchors


@dataclass(frozen=True)
class FedSAOptions(FedProtoOptions):
    """Hyperparameters."""

    lambda_: float = remote(10.0, "weight of the pull to the anchors, MSE(f(x), a_y)", least=0)
    contrast: float = remote(1.0, "weight of the margin-enhanced contrastive term", least=0)
    calibration: float = remote(1.0, "weight of the head's cross-entropy on the anchors", least=0)
    momentum: float = remote(0.9999, "share of its anchor that a class keeps in a round", least=0, most=1)
    prototypes: Literal["after", "during", "before"] = remote(
        "during", "local prototypes from the steps of the last local epoch, or from a pass after or before training"
    )
    nearest: Literal["anchors", "means"] = remote(
        "anchors", "what the rule global compares with; means of the clients' prototypes are sent as well"
    )
    classes: Literal["all"] = fixed("all")


@register
class FedSA(FedProto[FedSAOptions]):
    """Anchors ``a`` come down from the first round on; the means of clients' prototypes ``C`` move them a little.

    ::

        CE(g(f(x)), y) + λ·MSE(f(x), a_y)
            + contrast·CE(−(‖f(x) − a_c‖ + δ·1[c = y])_c, y) + calibration·mean_c CE(g(a_c), c)
        a_c ← μ·a_c + (1 − μ)·C_c

    ``δ`` is the larger gap of two, the client's and the anchors': the mean distance of a prototype to its nearest.
    Client state: as FedProto's, and ``gap``, ``δ`` ``()``.
    """

    name = "fedsa"
    summary = "pull, margin and calibrated heads towards anchors that hardly move"
    reference = "Zhou et al., AAAI 2025, arXiv 2501.05496"
    Options = FedSAOptions

    @classmethod
    def traits(cls, options: FedSAOptions) -> Traits:
        """As FedProto, and twice as much comes down if means do."""
        found = super().traits(options)
        return replace(found, down="2·K·d") if options.nearest == "means" else found

    @property
    def broadcast_schema(self) -> Schema:
        """``k`` anchors, and ``m`` means of the clients' prototypes if they are compared with."""
        anchors, K = super().broadcast_schema, self.task.num_classes
        if self.options.nearest == "anchors":
            return anchors
        means = {"reported": Field(("m",), "label", parameter=False), "means": Field(("m", "d"))}
        return replace(anchors, fields={**anchors.fields, **means}, limits={"k": K, "m": K})

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Return the anchors, and the ``(K, d)`` means and whose there are, ``(K,)``, if they are sent."""
        found = super().receive(local, message)
        if self.options.nearest == "anchors":
            return found
        means = no_rows(self.task)
        if message is not None:
            means = Prototypes.received(message["means"], message["reported"], self.task.num_classes)
        return found | _tensors(means)

    def client_state(self, counts: Tensor) -> Tensors:
        """Start with no margin."""
        return super().client_state(counts) | {"gap": torch.zeros((), dtype=self.task.dtype)}

    def begin(self, local: Local) -> None:
        """Measure ``δ``, by the prototypes that the client sent last; of a single one it has no gap."""
        gaps = [gap(Prototypes.of(local.state)), gap(Prototypes.of(local.received))]
        local.state["gap"] = torch.stack(gaps).amax().clamp(min=0)

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """FedProto's terms towards the anchors, the contrastive term, and the head's on the anchors."""
        o = self.options
        terms, output = super().loss(model, batch, received, state)
        assert output is not None
        anchors, present = Prototypes.of(received)
        apart = torch.cdist(output.features, anchors, compute_mode="donot_use_mm_for_euclid_dist")
        own = F.one_hot(batch.y, self.task.num_classes)
        contrast = batch.cross_entropy(-(apart + state["gap"] * own))
        heads = F.cross_entropy(model.head(anchors), torch.arange(len(anchors), device=anchors.device))
        some = present.any()
        terms["contrast"] = torch.where(some, o.contrast * contrast, 0.0)
        terms["calibration"] = torch.where(some, o.calibration * heads, 0.0)
        return terms, output

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Logits of the head, and minus the squared distances to prototypes, the shared ones by ``nearest``."""
        shared = (Prototypes.of if self.options.nearest == "anchors" else _means)(received)
        return nearest_scores(model(batch.x), state, shared, Prototypes.of(state))

    def server_state(self) -> Tensors:
        """Start with random anchors of all classes, and without means."""
        present = torch.ones(self.task.num_classes, dtype=torch.bool)
        means = _tensors(no_rows(self.task)) if self.options.nearest == "means" else {}
        return Prototypes(first_anchors(self.task), present).tensors() | means

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload | None:
        """Send the anchors, and the means that exist if they are compared with."""
        message = super().broadcast(server, round_number, client)
        if message is None or self.options.nearest == "anchors":
            return message
        rows, classes = _means(server).to_send()
        return {**message, "reported": classes, "means": rows}

    def update(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """``a_c ← μ·a_c + (1 − μ)·C_c`` of the classes that somebody reports."""
        mean = mean_of(uploads, self.task, divided=self.options.aggregation == "paper")
        mu = self.options.momentum
        moved = mu * server["prototypes"] + (1 - mu) * mean.rows
        new = self.merge(server, mean._replace(rows=moved))
        if self.options.nearest == "means":
            new |= _tensors(_means(server).merged(mean))
        return Aggregate(new, {})


def _means(tensors: Tensors) -> Prototypes:
    """Return the table of the clients' mean prototypes in a state or among what was received."""
    return Prototypes(tensors["means"], tensors["reported"])


def _tensors(means: Prototypes) -> Tensors:
    """Undo :func:`_means`."""
    return {"means": means.rows, "reported": means.present}


def gap(table: Prototypes) -> Tensor:
    """Return the mean distance from a prototype to its nearest, −∞ where there are not two."""
    rows = table.rows[table.present]
    if len(rows) < 2:
        return table.rows.new_tensor(-torch.inf)
    return pairwise_distances(rows).to(rows.dtype).fill_diagonal_(torch.inf).amin(1).mean()


def first_anchors(task: Task) -> Tensor:
    """Return standard normal vectors ``(K, d)`` after two random layers, each normalised over classes, and ReLU."""
    source, d = generator(task.seed, "anchors"), task.feature_dim
    rows = torch.randn(task.num_classes, d, generator=source, dtype=task.dtype)
    for _ in range(2):
        layer = linear_layer(d, d, source, task.dtype)
        rows = F.linear(rows, layer["weight"], layer["bias"])
        rows = ((rows - rows.mean(0)) / (rows.var(0, unbiased=False) + EPSILON).sqrt()).relu()
    return rows
