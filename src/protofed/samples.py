"""The data a client trains on: plain tensors, resident in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Samples:
    """Labelled samples.

    Attributes:
        x: ``(n, *shape)``; images as uint8 ``(n, C, H, W)``, anything else as a floating type.
        y: ``(n,)`` int64 class labels.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def counts(self, num_classes: int) -> Tensor:
        """Return ``(K,)`` int64: how many samples of each class there are."""
        return torch.bincount(self.y, minlength=num_classes)

    @property
    def exact(self) -> bool:
        """Whether :meth:`counts` are the numbers of samples, not what a client that withholds them says."""
        return True

    def most(self, num_classes: int) -> Tensor:
        """Return ``(K,)`` int64: how many samples of each class there can be."""
        return self.counts(num_classes)


@dataclass(frozen=True)
class ClientData:
    """One client's share of the federation.

    Attributes:
        name: Unique, used in file names (see :func:`protofed.claims.client_name`).
        train: Training samples; may be empty.
        test: Test samples; may be empty.
        validation: Held out from training for model selection, or None.
        settings: What the client decides for itself: any of ``model``, ``d``, ``epochs``, ``batch_size``,
            ``lr``, ``counts`` (from its ``client.toml``).
    """

    name: str
    train: Samples
    test: Samples
    validation: Samples | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FederatedData:
    """All clients' data and what they have in common.

    Attributes:
        clients: In a fixed order.
        num_classes: ``K``, over all clients.
        class_names: ``K`` names.
        input_shape: Shape of one sample, ``(C, H, W)`` or ``(F,)``.
    """

    clients: tuple[ClientData, ...]
    num_classes: int
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]

    def class_counts(self) -> Tensor:
        """Return ``(M, K)`` int64: training and test samples per client and class."""
        rows = [c.train.counts(self.num_classes) + c.test.counts(self.num_classes) for c in self.clients]
        return torch.stack(rows) if rows else torch.zeros(0, self.num_classes, dtype=torch.int64)

    def map(self, function: Callable[[Samples], Samples]) -> FederatedData:
        """Return the same federation with ``function`` of every split."""
        clients = tuple(
            replace(
                c,
                train=function(c.train),
                test=function(c.test),
                validation=None if c.validation is None else function(c.validation),
            )
            for c in self.clients
        )
        return replace(self, clients=clients)
