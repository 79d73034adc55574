"""The interface of partitions, which turn labels into one share per client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from protofed.errors import require
from protofed.options import NoOptions
from protofed.registry import Registry


@dataclass(frozen=True)
class Request:
    """The input of a partition.

    Attributes:
        y: ``(n,)`` int64 labels in ``0..K-1``.
        num_classes: ``K``.
        ids: ``(n,)`` int64 natural ids, or None.
        seed: Of the run; partitions derive their own with the scope ``"partition"``.
    """

    y: Tensor
    num_classes: int
    ids: Tensor | None
    clients: int
    seed: int
    id_names: Sequence[str] = ()


@dataclass(frozen=True)
class Share:
    """One client's samples, as positions in the pool (int64).

    Attributes:
        train: If ``test`` is None, all samples, which are then split by ``data.test_fraction``.
        domain: Name of a group of clients that ``shift`` treats alike; "" for a client of its own.
    """

    name: str
    train: Tensor
    test: Tensor | None = None
    validation: Tensor | None = None
    domain: str = field(default="", kw_only=True)

    def positions(self) -> list[Tensor]:
        """Return the parts that are not None."""
        return [part for part in (self.train, self.test, self.validation) if part is not None]


@dataclass(frozen=True)
class Partition:
    """An entry of ``partitions``.

    Attributes:
        assign: Returns one share per client, given ``Options``.
    """

    summary: str
    assign: Callable[[Request, Any], list[Share]]
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
