"""FedPer: the lower layers are averaged, the last ones stay private.

Arivazhagan et al., "Federated Learning with Personalization Layers", 2019. The weights n_i/N of the paper's mean
are not confirmed; they are what public code uses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from protofed.errors import ConfigError
from protofed.methods import register
from protofed.methods._weights import (
    check_parts,
    copied,
    first_model,
    load_weights,
    shared_weights,
    sharing_notes,
    with_samples,
    within,
)
from protofed.methods.contract import Aggregate, Local, Method, Tensors, Upload
from protofed.methods.fedavg import FedAvgOptions, average
from protofed.options import option
from protofed.wire.schema import Payload, Schema, weight_schema


@dataclass(frozen=True)
class FedPerOptions(FedAvgOptions):
    """Hyperparameters."""

    personal: tuple[str, ...] = option(
        ("head",), "modules that stay private: the last linear layer, or names such as extractor.map,head"
    )


P = TypeVar("P", bound=FedPerOptions)


@register
class FedPer(Method[P]):
    """Extractor and head are trained together; ``θ`` is averaged, ``φ_i`` never leaves and is never reset.

    Server state: ``θ``, by the names of its weights in the model.
    """

    name = "fedper"
    summary = "the extractor is averaged, every client keeps a head of its own"
    reference = "Arivazhagan et al., 2019, arXiv 1912.00818"
    exchanges = "part of the weights"
    up = "|θ|"
    down = "|θ|"
    same_architecture = True
    Options = FedPerOptions

    @classmethod
    def needs_counts(cls, options: P) -> bool:
        """Every upload holds ``n_i``."""
        return True

    def check(self) -> None:
        """Refuse private parts that do not exist, or that leave nothing to share."""
        model = first_model(self.task)
        check_parts("method.personal", self.options.personal, model)
        if all(self.personal(n) for n, _ in model.named_parameters()):
            raise ConfigError(f"{self.name}: method.personal is the whole model, so nothing is shared: use local")

    def personal(self, name: str) -> bool:
        """Return whether the weight called ``name`` belongs to ``φ_i``."""
        return within(self.options.personal)(name)

    def shares(self, name: str) -> bool:
        """Return whether the weight called ``name`` belongs to ``θ``."""
        return not self.personal(name)

    def notes(self) -> tuple[str, ...]:
        """Tell how much of the model is shared, and where BatchNorm's running statistics stay."""
        return sharing_notes(first_model(self.task), self.shares, self.options.share_buffers)

    # What crosses the network.

    @cached_property
    def initial(self) -> Tensors:
        """``θ^0``."""
        return copied(shared_weights(first_model(self.task), self.shares, buffers=self.options.share_buffers))

    @cached_property
    def broadcast_schema(self) -> Schema:
        """``θ``."""
        return weight_schema(self.initial, self.task.num_classes)

    @cached_property
    def upload_schema(self) -> Schema:
        """``θ_i``, and the client's number of samples."""
        return with_samples(self.broadcast_schema)

    # The client: Method's cross-entropy, from a model of ``θ`` and its own ``φ_i``.

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Take over ``θ``."""
        if message is not None:
            load_weights(local.model, message)
        return {}

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``θ_i`` and ``n_i``."""
        weights = shared_weights(local.model, self.shares, buffers=self.options.share_buffers)
        return {**weights, "samples": local.counts.sum()}

    # The server: FedAvg's.

    def server_state(self) -> Tensors:
        """Start from ``θ^0``."""
        return dict(self.initial)

    def broadcast(self, server: Tensors, round: int, client: str | None = None) -> Payload:
        """Send ``θ``."""
        return dict(server)

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """``θ ← Σ_i (n_i / Σ n)·θ_i`` over the clients of this round."""
        return Aggregate(average(server, uploads, self.options.weighting), {})
