"""Data on this machine: the user's own as one pool, and the files of local copies of public data sets."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from protofed.data.images import read_image_folder, read_npz, visible
from protofed.data.options import Columns, DataOptions
from protofed.data.pool import Dataset, Listing, datasets
from protofed.data.tabular import SUFFIXES, read_csv, read_parquet
from protofed.errors import ConfigError, DataError, MissingDataError
from protofed.options import Options, option
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


@dataclass(frozen=True)
class PathOptions(Options):
    """Options of the user's own data."""

    resize: int = option(0, "side in pixels: shorter side resized, centre crop (0 = as stored)", least=0)
    id_column: str = option("", "column with natural ids in a parquet or CSV file, for partition=natural")
    sites: bool = option(
        False,
        "each file or folder in data.path is a site (north.csv, west.xlsx, east/); sites without test samples "
        "hold out data.test_fraction of theirs",
    )


CLIENT_FILES = ("train.csv", "train.parquet", "train.npz")  #: Files of a client in a federation folder


def data_path(data: DataOptions) -> Path:
    """Return ``data.path``."""
    if not data.path:
        raise ConfigError("data.path is not set: data.source=path needs a folder, a .parquet, .csv or .npz file")
    path = Path(data.path).expanduser()
    candidates = [path] if path.is_absolute() else [path, *(folder / path for folder in data_dirs(data))]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    looked = ", ".join(str(c.parent) for c in candidates)
    raise MissingDataError(
        f"data.path = {data.path}: no such file or folder in {looked}: set data.path, --data-dir or PROTOFED_DATA"
    )


def open_path(data: DataOptions, options: PathOptions, seed: int) -> Listing:
    """Return the data at ``data.path`` as one listing; files are read in the order of their names."""
    path = data_path(data)
    budget = data.budget()
    _check_clients(path)
    files = [path]
    if path.is_dir():
        files = sorted(islice(path.rglob("*.parquet"), limits.FILES))
        files = files or [p for p in visible(path) if p.suffix.lower() in SUFFIXES and p.is_file()]
    if path.suffix == ".npz" and path.is_file():
        if options.resize:
            raise ConfigError(f"data.options.resize applies to encoded images, and {path} is an .npz file")
        return read_npz(path, budget)
    if files and files[0].suffix == ".parquet":
        return read_parquet(files, Columns.of(data, options.id_column, options.resize), str(path), budget)
    if files and files[0].suffix.lower() in SUFFIXES:
        return read_csv(files, Columns.of(data, options.id_column, options.resize), str(path), budget)
    if path.is_dir() and any(p.is_dir() for p in visible(path)):
        return read_image_folder(path, budget, options.resize)
    raise DataError(
        f"{path}: expected a federation folder (clients/), class folders with images, parquet files (to_parquet of "
        "datasets writes them) or CSV files, or an .npz file"
    )


def _check_clients(path: Path) -> None:
    """Raise DataError if a folder holds clients outside a folder ``clients``: they would be one data set."""
    folders = [p for p in visible(path) if p.is_dir()] if path.is_dir() else []
    found = [p / name for p in folders for name in CLIENT_FILES if (p / name).is_file()]
    if len(found) > 1:
        raise DataError(
            f"{found[0]}: a client's file outside a folder clients: move the clients to {path / 'clients'} "
            f"({path / 'clients' / found[0].parent.name / found[0].name})"
        )


_SUMMARY = "your own data at data.path: a federation folder, images, tables or npz"
datasets.register("path")(Dataset(_SUMMARY, open_path, PathOptions, reads_path=True))
