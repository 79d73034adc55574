"""Class-wise selection of samples, and the contract of partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from protofed.compute.seeding import generator as seeded
from protofed.data.options import DataOptions
from protofed.errors import require
from protofed.options import NoOptions
from protofed.registry import Registry


def apportion(quotas: Tensor, total: int, caps: Tensor, generator: torch.Generator) -> Tensor:
    """Round quotas ``(K,)`` to int64 numbers ``(K,)``, at most ``caps``, by the largest remainder.

    Args:
        total: Target sum. The sum may be smaller because of ``caps`` and because no entry is rounded up by more
            than one.
    """
    base = torch.minimum(quotas.floor().long(), caps)
    remainder = quotas - base
    # A stable sort of a random order, so that equal remainders do not always favour low class numbers.
    order = torch.randperm(len(quotas), generator=generator)
    order = order[torch.argsort(remainder[order], descending=True, stable=True)]
    order = order[(base < caps)[order] & (remainder > 0)[order]]
    base[order[: max(0, total - int(base.sum()))]] += 1
    return base


def choose(y: Tensor, per_class: Tensor, generator: torch.Generator) -> Tensor:
    """Choose ``per_class`` ``(K,)`` random samples of each class of labels ``(n,)``; return a mask ``(n,)``."""
    shuffled = torch.randperm(len(y), generator=generator)
    by_class = shuffled[torch.argsort(y[shuffled], stable=True)]
    counts = torch.bincount(y, minlength=len(per_class))
    starts = counts.cumsum(0) - counts
    rank = torch.arange(len(y)) - starts[y[by_class]]
    mask = torch.zeros(len(y), dtype=torch.bool)
    mask[by_class] = rank < per_class[y[by_class]]
    return mask


def hold_out(y: Tensor, fraction: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Hold out a fraction of the samples with labels ``(n,)``, class by class.

    The held-out part has ``round(n * fraction)`` samples, divided among the classes by largest remainder. Every
    class keeps at least one sample, so a class with a single sample is never held out; the held-out part may then
    be smaller.

    Returns:
        ``(kept, held_out)``, each int64 in ascending order.
    """
    if len(y) == 0:
        return torch.arange(0), torch.arange(0)
    counts = torch.bincount(y)
    quotas = torch.where(counts > 1, counts, 0).double() * fraction
    take = apportion(quotas, round(len(y) * fraction), (counts - 1).clamp(min=0), generator)
    mask = choose(y, take, generator)
    return (~mask).nonzero().flatten(), mask.nonzero().flatten()


def subset(y: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Choose a subset with the class proportions of ``(n,)`` labels; return int64 positions in ascending order."""
    counts = torch.bincount(y)
    take = apportion(counts.double() * size / max(1, len(y)), size, counts, generator)
    return choose(y, take, generator).nonzero().flatten()


def limit_training(y: Tensor, data: DataOptions, seed: int, client: str) -> Tensor:
    """Return the positions of the training samples that a client keeps, int64 ascending: ``data.train_samples``."""
    if not 0 < data.train_samples < len(y):
        return torch.arange(len(y))
    return subset(y, data.train_samples, seeded(seed, "limit", client))


@dataclass(frozen=True)
class Request:
    """The input of a partition."""

    y: Tensor  #: ``(n,)`` int64 labels in ``0..K-1``
    num_classes: int  #: ``K``
    ids: Tensor | None  #: ``(n,)`` int64 natural ids, or None
    clients: int
    seed: int  #: Of the run; partitions derive their own with the scope ``"partition"``
    id_names: Sequence[str] = ()


@dataclass(frozen=True)
class Share:
    """One client's samples, as positions in the pool (int64)."""

    name: str
    train: Tensor  #: If ``test`` is None, all samples, which are then split by ``data.test_fraction``
    test: Tensor | None = None
    validation: Tensor | None = None
    #: Name of a group of clients that ``shift`` treats alike; "" for a client of its own
    domain: str = field(default="", kw_only=True)

    def positions(self) -> list[Tensor]:
        """Return the parts that are not None."""
        return [part for part in (self.train, self.test, self.validation) if part is not None]


@dataclass(frozen=True)
class Partition:
    """An entry of ``partitions``."""

    summary: str
    assign: Callable[[Request, Any], list[Share]]  #: Returns one share per client, given ``Options``
    Options: type = field(default=NoOptions)


partitions: Registry[Partition] = Registry("partition")


def names(count: int) -> list[str]:
    """Return the names ``client-00``, ``client-01``, ..., with as many digits as ``count``, but at least two."""
    width = max(2, len(str(count)))
    return [f"client-{number:0{width}d}" for number in range(count)]


def require_clients(request: Request) -> None:
    """Raise ConfigError unless there is at least one client, and one sample for each."""
    require(request.clients >= 1, "data.clients = 0: must be at least 1 for this partition")
    require(
        request.clients <= len(request.y),
        f"data.clients = {request.clients}, but there are only {len(request.y)} samples: lower data.clients",
    )
