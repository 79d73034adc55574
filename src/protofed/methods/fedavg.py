"""FedAvg: clients of one architecture average their weights.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from protofed.methods import register
from protofed.methods._weights import WeightedMean, load_weights, shared_weights
from protofed.methods.contract import Aggregate, Local, Method, Task, Tensors, Upload
from protofed.methods.schema import Field, Payload, Schema, weight_schema
from protofed.options import option


@dataclass(frozen=True)
class FedAvgOptions:
    """Hyperparameters."""

    weighting: Literal["samples", "uniform"] = option("samples", "weight of a client: n_i, or 1")
    share_buffers: bool = option(True, "also average BatchNorm's running statistics")


@register
class FedAvg(Method):
    """FederatedAveraging (Algorithm 1)."""

    name = "fedavg"
    summary = "weights averaged over clients of one architecture"
    reference = "McMahan et al., AISTATS 2017, arXiv 1602.05629"
    exchanges = "all weights"
    same_architecture = True
    Options = FedAvgOptions

    def __init__(self, options: FedAvgOptions, task: Task) -> None:
        super().__init__(options, task)
        self._down: Schema | None = None

    # The client: E epochs of cross-entropy from w^t.

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Start from the global weights ``w^t``."""
        if message is not None:
            load_weights(local.model, message)
        return {}

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``w_i`` and ``n_i``."""
        weights = shared_weights(local.model, buffers=self.options.share_buffers)
        return {**weights, "samples": local.counts.sum()}

    # The server.

    def server_state(self) -> Tensors:
        """Start from one initial model."""
        assert self.task.template is not None  # the engine refuses mixed architectures before
        model = self.task.template()
        return {n: w.clone() for n, w in shared_weights(model, buffers=self.options.share_buffers).items()}

    @property
    def broadcast_schema(self) -> Schema:
        """All weights."""
        if self._down is None:
            self._down = weight_schema(self.server_state(), self.task.num_classes)
        return self._down

    @property
    def upload_schema(self) -> Schema:
        """All weights, and one sample count."""
        samples = Field((), "count", parameter=False)
        return Schema({**self.broadcast_schema.fields, "samples": samples}, self.task.num_classes)

    def broadcast(self, server: Tensors, round: int, client: str | None = None) -> Payload:
        """Send ``w^t``."""
        return dict(server)

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """``w^{t+1} = Σ_i (n_i / Σ n)·w_i`` over the clients of this round; nobody: keep ``w^t``."""
        mean = WeightedMean()
        for upload in uploads:
            samples = int(upload.payload["samples"])
            weights = {n: w for n, w in upload.payload.items() if n != "samples"}
            mean.add(weights, samples if self.options.weighting == "samples" else 1.0)
        with torch.no_grad():
            return Aggregate(mean.mean(server), {})
