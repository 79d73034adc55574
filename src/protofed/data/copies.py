"""Local copies of public data sets: the folders to search and the files of each split."""

from __future__ import annotations

import os
import re
from itertools import islice
from pathlib import Path

from protofed.data.options import DataOptions
from protofed.errors import DataError
from protofed.untrusted import limits

_PART = re.compile(r"(?P<split>.+?)-(?P<part>\d+)-of-(?P<parts>\d+)(-[0-9a-f]+)?$")


def data_dirs(data: DataOptions) -> list[Path]:
    """Return the folders that are searched for local copies."""
    for label, value in (("data.data_dir", data.data_dir), ("PROTOFED_DATA", os.environ.get("PROTOFED_DATA"))):
        if value:
            folder = Path(value).expanduser()
            if not folder.is_dir():
                raise DataError(f"{label} = {value}: no such folder")
            return [folder]
    return [p for p in (Path("shared/data"), Path("../shared/data")) if p.is_dir()]


def find_parquet(folder: Path, splits: tuple[str, ...]) -> list[Path]:
    """Find the parquet files of some splits.

    The names ``<split>-00000-of-00001.parquet``, ``<split>.parquet`` and ``<split>/0000.parquet`` are
    recognised, directly in ``folder`` or in one sub-folder (the hub's ``data`` or configuration name).
    """
    found: list[Path] = []
    for pattern in ("*.parquet", "*/*.parquet", "*/*/*.parquet"):
        found = found or sorted(folder.glob(pattern))
    chosen: list[Path] = []
    for split in splits if found else ():
        files = [f for f in found if split_of(f) == split]
        homes = sorted({str(f.parent) for f in files})
        if not files:
            raise DataError(
                f"{folder}: no parquet file of the split {split!r} (e.g. {split}-00000-of-00001.parquet)"
            )
        if len(homes) > 1:
            raise DataError(f"{folder}: the split {split!r} is in several folders, {', '.join(homes)}: keep one")
        part = _PART.match(files[0].stem)
        if part and len(files) != int(part["parts"]):
            raise DataError(
                f"{folder}: {len(files)} of {int(part['parts'])} files of the split {split!r}: download the rest"
            )
        chosen += files
    return chosen


SPLITS = frozenset(["train", "training", "test", "testing", "validation", "valid", "val", "dev", "eval"])
"""Usual names of splits."""


def one_data_set(folder: Path) -> list[Path]:
    """Return the parquet files below a folder if they are splits of one data set, as on the hub; else none."""
    found = [] if (folder / "clients").is_dir() else sorted(islice(folder.rglob("*.parquet"), limits.FILES))
    homes = {file.parent.parent if file.stem.isdigit() else file.parent for file in found}
    return found if len(homes) == 1 and {split_of(file) for file in found} <= SPLITS else []


def split_of(file: Path) -> str:
    """Return the split that a file's name, or else its folder's, stands for."""
    part = _PART.match(file.stem)
    if part:
        return part["split"]
    return file.parent.name if file.stem.isdigit() else file.stem
