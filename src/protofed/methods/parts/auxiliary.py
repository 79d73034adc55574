"""Base of methods whose clients keep models of their own and share a second one."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from torch import nn

from protofed.errors import ConfigError, ModelError
from protofed.methods.contract import Aggregate, Batch, Local, Method, Task, Tensors, Traits, Upload
from protofed.methods.fedavg import average
from protofed.methods.parts.weights import copied, load_weights, shared_weights, with_samples
from protofed.methods.traits import GLOBAL_MODEL, HEAD
from protofed.options import Options, option
from protofed.wire.schema import Payload, Schema, weight_schema

if TYPE_CHECKING:
    from protofed.models import SplitModel


@dataclass(frozen=True)
class AuxiliaryOptions(Options):
    """The shared model, and how its mean is taken."""

    auxiliary: str = option(
        "", "architecture of the shared model ('' = model.shared, or else model.name or the first of that group)"
    )
    auxiliary_options: dict[str, Any] = option({}, "options of that architecture")
    auxiliary_d: int = option(0, "length of its features (0 = model.d)", least=0)
    weighting: Literal["uniform", "samples"] = option("uniform", "weight of a client in the mean: 1, or n_i")
    share_buffers: bool = option(True, "also average the shared model's BatchNorm running statistics")


A = TypeVar("A", bound=AuxiliaryOptions)


class AuxiliaryMethod(Method[A]):
    """Client i's own model ``w_i`` stays; the shared ``w_aux`` is trained beside it, sent and averaged.

    The shared model is in every client's ``extras`` under the name :attr:`role`. Rules: ``head`` is the client's
    own model, ``global_model`` the shared one. Server state: the shared model, by the names of its weights.
    """

    role: ClassVar[str]

    @classmethod
    def traits(cls, options: A) -> Traits:
        """Every upload holds ``n_i``, for a mean; the client's own model answers, and the shared one."""
        return Traits(
            "part of the weights",
            "|w_aux|",
            "|w_aux|",
            f"one K-way {cls.role}",
            (HEAD, GLOBAL_MODEL),
            counts=True,
            beyond_means="",
        )

    def __init__(self, options: A, task: Task) -> None:
        super().__init__(options, task)
        if task.auxiliary is not None:  # refuses a shared model that cannot take the clients' samples
            _ = self.network

    @cached_property
    def network(self) -> SplitModel:
        """The shared model with its initial weights."""
        assert self.task.auxiliary is not None
        o = self.options
        try:
            return self.task.auxiliary(o.auxiliary, o.auxiliary_options, o.auxiliary_d or None)
        except (ConfigError, ModelError) as error:
            raise type(error)(f"method.auxiliary, the {self.role} of {self.name}: {error}") from None

    @cached_property
    def initial(self) -> Tensors:
        """The shared weights that the server starts from."""
        return copied(self.shared(self.network))

    def notes(self) -> tuple[str, ...]:
        """Describe the size of the shared model."""
        size = sum(p.numel() for p in self.network.parameters())
        name = self.options.auxiliary or "the experiment's first architecture"
        return (f"The {self.role} that all clients share, {name}, has {size:,} parameters.",)

    def extend(self, model: SplitModel) -> None:
        """Put the shared model beside the client's own."""
        model.extras[self.role] = copy.deepcopy(self.network)

    def shared(self, network: nn.Module) -> Tensors:
        """Return references to the weights of the shared model that cross the network."""
        return shared_weights(network, buffers=self.options.share_buffers)

    # What crosses the network.

    @cached_property
    def broadcast_schema(self) -> Schema:
        """``w_aux``."""
        return weight_schema(self.initial, self.task.num_classes)

    @cached_property
    def upload_schema(self) -> Schema:
        """``w_aux``, and the client's number of samples."""
        return with_samples(self.broadcast_schema, self.options.weighting)

    # The client.

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Load the shared model."""
        if message is not None:
            load_weights(local.model.extras[self.role], message)
        return {}

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send the trained ``w_aux``, and ``n_i``."""
        return {**self.shared(local.model.extras[self.role]), "samples": local.counts.sum()}

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Logits of either classifier."""
        return {"head": model(batch.x).logits, "global_model": model.extras[self.role](batch.x).logits}

    # The server.

    def server_state(self) -> Tensors:
        """Start from one initial model."""
        return dict(self.initial)

    def broadcast(self, server: Tensors, round: int, client: str | None = None) -> Payload:
        """Send the shared model."""
        return dict(server)

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """The shared model becomes the mean of the clients'."""
        return Aggregate(average(server, uploads, self.options.weighting), {})
