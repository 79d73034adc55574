"""LG-FedAvg: every client keeps a representation of its own; the head is averaged.

Liang et al., "Think Locally, Act Globally: Federated Learning with Local and Global Representations", 2019. The
authors' CIFAR code shares the convolutions instead and keeps the dense layers, the reverse of the paper's story;
that is ``shared = extractor.…``. It also starts from a model trained by FedAvg, which is left to the user.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from protofed.models import SplitModel


@dataclass(frozen=True)
class LGFedAvgOptions(FedAvgOptions):
    """Hyperparameters; the authors' code averages uniformly, public re-implementations by n_i."""

    shared: tuple[str, ...] = option(
        ("head",), "modules that are averaged: the last linear layer, or names such as extractor.map,head"
    )


@register
class LGFedAvg(Method[LGFedAvgOptions]):
    """``θ_i`` and ``φ`` are trained together by cross-entropy; ``φ`` is averaged.

    Extractors may differ. The first round opens with the head of the first client's initial model. Server state:
    ``φ``, by the names of its weights in the model.
    """

    name = "lg_fedavg"
    summary = "the head is averaged, every client keeps an extractor of its own"
    reference = "Liang et al., 2019, arXiv 2001.01523"
    exchanges = "part of the weights"
    up = "|φ|"
    down = "|φ|"
    class_sets = "one K-way head"
    same_feature_dim = True
    Options = LGFedAvgOptions

    @classmethod
    def needs_counts(cls, options: LGFedAvgOptions) -> bool:
        """Every upload holds ``n_i``."""
        return True

    def check(self) -> None:
        """Refuse shared parts that are missing, or do not exist."""
        if not self.options.shared:
            raise ConfigError("lg_fedavg: method.shared is empty: name what is averaged, e.g. head, or use local")
        check_parts("method.shared", self.options.shared, first_model(self.task))

    def shares(self, name: str) -> bool:
        """Return whether the weight called ``name`` belongs to ``φ``."""
        return within(self.options.shared)(name)

    def notes(self) -> tuple[str, ...]:
        """Tell how much of the model is shared, and where BatchNorm's running statistics stay."""
        return sharing_notes(first_model(self.task), self.shares, self.options.share_buffers)

    # What crosses the network.

    @cached_property
    def initial(self) -> Tensors:
        """``φ^0``."""
        return copied(shared_weights(first_model(self.task), self.shares, buffers=self.options.share_buffers))

    @cached_property
    def broadcast_schema(self) -> Schema:
        """``φ``."""
        return weight_schema(self.initial, self.task.num_classes)

    @cached_property
    def upload_schema(self) -> Schema:
        """``φ_i``, and the client's number of samples."""
        return with_samples(self.broadcast_schema)

    # The client: Method's cross-entropy, from a model of its own ``θ_i`` and ``φ``.

    def extend(self, model: SplitModel) -> None:
        """Refuse a model whose shared part does not have the shapes of the first client's."""
        own = shared_weights(model, self.shares, buffers=self.options.share_buffers)
        for name in sorted(own.keys() | self.initial.keys()):
            shape, first = (tuple(w[name].shape) if name in w else "none" for w in (own, self.initial))
            if shape != first:
                raise ConfigError(
                    f"lg_fedavg averages {name}, which is {shape} here and {first} at the first client: share "
                    "parts that all architectures have alike (method.shared)"
                )

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Take over ``φ``."""
        if message is not None:
            load_weights(local.model, message)
        return {}

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``φ_i`` and ``n_i``."""
        weights = shared_weights(local.model, self.shares, buffers=self.options.share_buffers)
        return {**weights, "samples": local.counts.sum()}

    # The server: FedAvg's.

    def server_state(self) -> Tensors:
        """Start from ``φ^0``."""
        return dict(self.initial)

    def broadcast(self, server: Tensors, round: int, client: str | None = None) -> Payload:
        """Send ``φ``."""
        return dict(server)

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """``φ ← Σ_i (n_i / Σ n)·φ_i`` over the clients of this round."""
        return Aggregate(average(server, uploads, self.options.weighting), {})
