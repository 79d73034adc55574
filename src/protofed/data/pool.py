"""A pooled data set, held in memory (:class:`Pool`) or with features read on demand (:class:`Listing`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofed.data.options import DataOptions, resolve_options
from protofed.data.tables import RawColumn, category
from protofed.errors import ConfigError
from protofed.options import NoOptions
from protofed.registry import Registry


@dataclass(frozen=True)
class Pool:
    """A whole data set in memory."""

    x: Tensor  #: ``(n, *shape)``; images as uint8 ``(n, C, H, W)``, anything else float32
    y: Tensor  #: ``(n,)`` int64 labels in ``0..K-1``
    class_names: tuple[str, ...]
    ids: Tensor | None = None  #: ``(n,)`` int64 natural ids, i.e. the origin of each sample (a writer, a hospital)

    def listing(self, where: str) -> Listing:
        """Return this pool as a listing named ``where`` in error messages."""
        ids = None if self.ids is None else self.ids.numpy()
        return Listing(self.y.numpy(), lambda rows: self.x[rows], where, self.class_names, ids)


@dataclass(frozen=True)
class Listing:
    """Labels in memory, with features read on demand.

    Choosing a subset or a partition needs only the labels, so unused images are never decoded.
    """

    labels: np.ndarray  #: ``(n,)`` integers or class names
    read: Callable[[Tensor], Tensor]  #: Returns ``(m, *shape)`` features of ``(m,)`` int64 rows, with ``m > 0``
    where: str
    class_names: tuple[str, ...] | None = None
    ids: np.ndarray | None = None  #: ``(n,)`` natural ids, integers or strings
    #: Those of a table, with raw values (see :mod:`protofed.data.tables`); None if these samples are no table
    columns: tuple[RawColumn, ...] | None = None
    names: tuple[str, ...] = ()  #: All columns of the table in the file
    at: Callable[[int], str] | None = None  #: Names the place of a sample for messages
    #: Grey images read so far that were converted to colour because others are in colour
    converted: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def place(self, number: int) -> str:
        """Return the place of a sample for messages."""
        return f"{self.where}: sample {number}" if self.at is None else self.at(number)

    def id_codes(self) -> tuple[Tensor | None, list[str]]:
        """Return the natural ids as ``(n,)`` int64 codes in their sorted order, or None, and their names."""
        if self.ids is None:
            return None, []
        found, codes = np.unique(self.ids, return_inverse=True)
        return torch.from_numpy(codes.astype(np.int64)), list(map(category, found.tolist()))


@dataclass(frozen=True)
class Dataset:
    """An entry of ``datasets``."""

    summary: str
    #: Returns a :class:`Pool` or :class:`Listing`, given ``Options`` and a seed
    open: Callable[[DataOptions, Any, int], Pool | Listing]
    Options: type = field(default=NoOptions)
    reads_path: bool = False  #: Whether it reads ``data.path``


datasets: Registry[Dataset] = Registry("data set")


def open_dataset(name: str, data: DataOptions, options: Any, seed: int) -> Listing:
    """Open a data set with its options: a mapping, or None for the defaults."""
    entry = datasets.get(name)
    if data.path and not datasets.get(data.source).reads_path:
        raise ConfigError(f"data.path = {data.path}: data.source={data.source} reads no path: add data.source=path")
    found = entry.open(data, resolve_options(entry.Options, options, "data.options"), seed)
    return found.listing(name) if isinstance(found, Pool) else found
