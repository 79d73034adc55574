"""Weights that clients send and get back as their mean: all of a model, a part of it, or a second model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from torch import nn

from protofed.methods.contract import Aggregate, Local, Method, SplitModel, Tensors, Traits, Upload
from protofed.methods.parts.weights import (
    WeightedMean,
    copy_tensors,
    first_model,
    load_weights,
    select_weights,
    sharing_notes,
    weight_of,
    with_samples,
)
from protofed.methods.traits import Protection
from protofed.options import Options, remote
from protofed.wire.schema import Payload, Schema, weight_schema

if TYPE_CHECKING:
    Base = Method
else:
    Base = Generic


@dataclass(frozen=True)
class FedAvgOptions(Options):
    """Hyperparameters."""

    weighting: Literal["samples", "uniform"] = remote("samples", "weight of a client in the mean: n_i, or 1")
    share_buffers: bool = remote(
        True, "BatchNorm's running statistics are averaged as the weights are; otherwise they stay on the client"
    )


W = TypeVar("W", bound=FedAvgOptions)


class AveragedWeights(Base[W]):
    """Mixin before Method: weights of one network go up with ``n_i``, and their mean comes down.

    Server state: those weights, by their names in the network.
    """

    def shares(self, name: str) -> bool:
        """Return whether the weight called ``name`` is sent; by default all are."""
        return True

    def first_model(self) -> SplitModel:
        """Return the network whose weights open the first round."""
        return first_model(self.task)

    def copy_of(self, model: SplitModel) -> nn.Module:
        """Return a client's copy of that network: by default its model."""
        return model

    def take_shared(self, network: nn.Module) -> Tensors:
        """Return references to the weights of a network that are sent."""
        return select_weights(network, self.shares, buffers=self.options.share_buffers)

    @cached_property
    def initial(self) -> Tensors:
        """The weights ``w^0`` that the server starts from."""
        return copy_tensors(self.take_shared(self.first_model()))

    @cached_property
    def broadcast_schema(self) -> Schema:
        """The weights."""
        return weight_schema(self.initial, self.task.num_classes)

    @cached_property
    def upload_schema(self) -> Schema:
        """The weights, and the client's number of samples."""
        return with_samples(self.broadcast_schema, self.options.weighting)

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Load the mean."""
        if message is not None:
            load_weights(self.copy_of(local.model), message)
        return {}

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``w_i`` and ``n_i``."""
        return {**self.take_shared(self.copy_of(local.model)), "samples": local.counts.sum()}

    def server_state(self) -> Tensors:
        """Start from ``w^0``."""
        return dict(self.initial)

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload:
        """Send ``w^t``."""
        return {name: server[name] for name in self.broadcast_schema.fields}

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """``w^{t+1} = Σ_i (n_i / Σ n)·w_i`` over the clients of this round."""
        return Aggregate(average(server, uploads, self.options.weighting), {})


class SharedPart(AveragedWeights[W], Method[W]):
    """Clients train by cross-entropy, send the part of the model that :meth:`shares` selects, and load its mean.

    Server state: the shared part, by the names of its weights in the model.
    """

    @classmethod
    def traits(cls, options: W) -> Traits:
        """Every upload holds ``n_i``, and the server takes a mean."""
        return Traits(
            exchanges="part of the weights",
            counts="always",
            aggregation="sums",
            protection=Protection(dp_obstacle=""),
        )

    def notes(self) -> tuple[str, ...]:
        """Describe the shared share of the model, and the place of BatchNorm's running statistics."""
        return sharing_notes(self.first_model(), self.shares, self.options.share_buffers)


def average(server: Tensors, uploads: Iterable[Upload], weighting: str) -> Tensors:
    """Return ``Σ_i (n_i / Σ n)·w_i``.

    Args:
        server: The present weights ``w^t``, which stay without uploads.
        uploads: Each with the same weights ``w_i``, and ``samples`` ``n_i``.
    """
    mean = WeightedMean()
    for upload in uploads:
        weights = {n: w for n, w in upload.payload.items() if n != "samples"}
        mean.add(weights, weight_of(upload.payload, weighting))
    return mean.mean(server)
