"""Conversion of image folders, with one sub-folder per class, to listings."""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path

import numpy as np
from torch import Tensor

from protofed.data.checks import as_labels, readable
from protofed.data.images import SUFFIXES, decode
from protofed.data.pool import Listing
from protofed.errors import DataError
from protofed.untrusted import limits
from protofed.untrusted.limits import Budget
from protofed.untrusted.reading import read_bytes

SYSTEM = ("desktop.ini", "thumbs.db")
"""Names of files that Windows leaves in folders, in lower case."""


def hidden(name: str) -> bool:
    """Return whether a file or folder of this name is hidden, or the system's."""
    return name.startswith(".") or name.lower() in SYSTEM


def visible(folder: Path) -> list[Path]:
    """Return the entries of ``folder`` sorted by name, without hidden files and those of the system."""
    with readable(folder), os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, limits.FILES + 1)]
    if len(names) > limits.FILES:
        raise DataError(f"{folder}: holds more than {limits.FILES} files")
    return sorted(folder / name for name in names if not hidden(name))


def read_class_folders(folder: Path, budget: Budget, resize: int = 0, home: Path | None = None) -> Listing:
    """Return the images under ``folder/<class>/`` as a listing labelled with the class names.

    Args:
        home: Folder that links must not leave; None allows any target.
    """
    return _listing(_images(folder, home), str(folder), budget, resize)


def read_image_folder(folder: Path, budget: Budget, resize: int = 0) -> Listing:
    """Return ``folder/<class>/*`` or ``folder/<split>/<class>/*`` (all splits merged) as a listing."""
    inner = [p for p in visible(folder) if p.is_dir()]
    has_splits = any(q.is_dir() for p in inner for q in visible(p))
    files = [f for p in inner for f in _images(p)] if has_splits else _images(folder)
    return _listing(files, str(folder), budget, resize)


def read_image(path: Path) -> bytes:
    """Return the encoded bytes of an image."""
    with readable(path):
        return read_bytes(path, limits.IMAGE_BYTES)


def check_inside(path: Path, home: Path) -> None:
    """Refuse a link that leads out of ``home`` or nowhere."""
    try:
        inside = path.resolve(strict=True).is_relative_to(home.resolve())
    except (OSError, RuntimeError) as error:  # a link to itself, or to nothing
        raise DataError(f"{path}: a link that leads nowhere ({type(error).__name__})") from None
    if not inside:
        raise DataError(f"{path}: a link that leads out of {home}: copy the data there instead")


def _images(folder: Path, home: Path | None = None) -> list[Path]:
    classes = visible(folder)
    if not classes:
        raise DataError(f"{folder}: empty folder: expected one sub-folder of images per class")
    files: list[Path] = []
    for entry in classes:
        if home is not None and entry.is_symlink():
            check_inside(entry, home)
        if not entry.is_dir():
            raise DataError(f"{entry}: not a folder: expected one sub-folder of images per class")
        inside = visible(entry)
        if not inside:
            raise DataError(f"{entry}: holds no images: remove or fill it")
        for file in inside:
            if home is not None and file.is_symlink():
                check_inside(file, home)
            if file.suffix.lower() not in SUFFIXES or not file.is_file():
                raise DataError(f"{file}: not an image ({', '.join(sorted(SUFFIXES))}): remove it")
        files += inside
        if len(files) > limits.FILES:
            raise DataError(f"{folder}: holds more than {limits.FILES} files")
    return files


def _listing(files: list[Path], where: str, budget: Budget, resize: int) -> Listing:
    def read(rows: Tensor) -> Tensor:
        payload, place = (lambda row: read_image(files[row])), (lambda row: str(files[row]))
        return decode(payload, rows, place, budget, resize=resize, converted=converted)

    converted: list[str] = []
    labels = as_labels(np.array([f.parent.name for f in files], dtype=object), where, budget)
    return Listing(labels, read, where, converted=converted)
