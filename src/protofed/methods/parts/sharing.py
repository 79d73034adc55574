"""Base of methods that average a part of a model's weights, while the rest stays on the clients."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TypeVar

from protofed.methods.contract import Aggregate, Local, Method, Tensors, Traits, Upload
from protofed.methods.fedavg import FedAvgOptions, average
from protofed.methods.parts.weights import (
    copied,
    first_model,
    load_weights,
    shared_weights,
    sharing_notes,
    with_samples,
)
from protofed.wire.schema import Payload, Schema, weight_schema

S = TypeVar("S", bound=FedAvgOptions)


class SharedPart(Method[S]):
    """Clients train by cross-entropy, send the part of the model that :meth:`shares` selects, and load its mean.

    Server state: the shared part, by the names of its weights in the model.
    """

    @classmethod
    def traits(cls, options: S) -> Traits:
        """Every upload holds ``n_i``, and the server takes a mean."""
        return Traits("part of the weights", counts=True, beyond_means="")

    def shares(self, name: str) -> bool:
        """Return whether the weight called ``name`` belongs to the shared part."""
        raise NotImplementedError

    def notes(self) -> tuple[str, ...]:
        """Describe the shared share of the model, and the place of BatchNorm's running statistics."""
        return sharing_notes(first_model(self.task), self.shares, self.options.share_buffers)

    # What crosses the network.

    @cached_property
    def initial(self) -> Tensors:
        """The shared part of the first model."""
        return copied(shared_weights(first_model(self.task), self.shares, buffers=self.options.share_buffers))

    @cached_property
    def broadcast_schema(self) -> Schema:
        """The shared part."""
        return weight_schema(self.initial, self.task.num_classes)

    @cached_property
    def upload_schema(self) -> Schema:
        """The shared part, and the client's number of samples."""
        return with_samples(self.broadcast_schema, self.options.weighting)

    # The client.

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Load the shared part."""
        if message is not None:
            load_weights(local.model, message)
        return {}

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send the shared part and ``n_i``."""
        weights = shared_weights(local.model, self.shares, buffers=self.options.share_buffers)
        return {**weights, "samples": local.counts.sum()}

    # The server: FedAvg's.

    def server_state(self) -> Tensors:
        """Start from the first model."""
        return dict(self.initial)

    def broadcast(self, server: Tensors, round: int, client: str | None = None) -> Payload:
        """Send the shared part."""
        return dict(server)

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """``Σ_i (n_i / Σ n)·θ_i`` over the clients of this round."""
        return Aggregate(average(server, uploads, self.options.weighting), {})
