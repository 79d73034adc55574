"""Image folders to listings: one sub-folder per class."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from protofed.data.images import SUFFIXES, decode
from protofed.data.pool import Listing
from protofed.errors import DataError


def visible(folder: Path) -> list[Path]:
    """Return what ``folder`` holds, sorted by name, without hidden files."""
    return sorted(p for p in folder.iterdir() if not p.name.startswith("."))


def read_class_folders(folder: Path, resize: int = 0) -> Listing:
    """Return the images under ``folder/<class>/`` as a listing labelled with the class names.

    Raises:
        DataError: For anything that is not an image, or an empty folder.
    """
    return _listing(_images(folder), str(folder), resize)


def read_image_folder(folder: Path, resize: int = 0) -> Listing:
    """Return ``folder/<class>/*`` or ``folder/<split>/<class>/*`` (all splits merged) as a listing.

    Raises:
        DataError: For anything that is not an image, or an empty folder.
    """
    inner = [p for p in visible(folder) if p.is_dir()]
    has_splits = any(q.is_dir() for p in inner for q in visible(p))
    files = [f for p in inner for f in _images(p)] if has_splits else _images(folder)
    return _listing(files, str(folder), resize)


def _images(folder: Path) -> list[Path]:
    classes = visible(folder)
    if not classes:
        raise DataError(f"{folder}: empty folder: expected one sub-folder of images per class")
    files: list[Path] = []
    for entry in classes:
        if not entry.is_dir():
            raise DataError(f"{entry}: not a folder: expected one sub-folder of images per class")
        inside = visible(entry)
        if not inside:
            raise DataError(f"{entry}: holds no images: remove or fill it")
        for file in inside:
            if file.suffix.lower() not in SUFFIXES or not file.is_file():
                raise DataError(f"{file}: not an image ({', '.join(sorted(SUFFIXES))}): remove it")
        files += inside
    return files


def _listing(files: list[Path], where: str, resize: int) -> Listing:
    def payload(row: int) -> bytes:
        return files[row].read_bytes()

    labels = np.array([f.parent.name for f in files])
    return Listing(labels, lambda rows: decode(payload, rows, lambda row: str(files[row]), resize=resize), where)
