"""Images in folders and files, and arrays of ``.npz`` files, as listings."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofed.data import apart
from protofed.data.checks import as_labels, check_names, check_sample, readable
from protofed.data.pool import Listing
from protofed.errors import DataError
from protofed.untrusted import limits
from protofed.untrusted.limits import Budget
from protofed.untrusted.reading import read_bytes

SUFFIXES = frozenset([".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"])
_CHUNK = 256
_CHUNK_BYTES = 64 * limits.MiB
"""Bytes of the images that are decoded in one go, encoded or not, unless a single one has more."""


def decode(
    payload: Callable[[int], Any],
    rows: Tensor,
    where: Callable[[int], str],
    budget: Budget,
    channels: int = 0,
    resize: int = 0,
    converted: list[str] | None = None,
) -> Tensor:
    """Decode images, as :func:`protofed.data.apart.read_images` does in parts.

    Args:
        converted: Receives, with ``channels = 0``, the descriptions of grey images that were converted to colour
            because others are in colour.

    Returns:
        uint8 ``(n, C, H, W)``.

    Raises:
        DataError: If an image is not readable, not 8-bit or too large, or the images differ in size.
    """
    numbers = rows.tolist()
    first, _ = apart.read_images([payload(numbers[0])], lambda _: where(numbers[0]), channels, resize, None)
    size, taken = first.shape[1:3], len(numbers) * first.nbytes
    budget.take(taken, where(numbers[0]))
    pieces = [first]
    grey: list[int] = []  # among coloured ones
    most = min(_CHUNK, max(1, _CHUNK_BYTES // first.nbytes))
    start = 1
    for chunk in _chunks(map(payload, numbers[1:]), most):
        own = numbers[start : start + len(chunk)]
        images, places = apart.read_images(chunk, [*map(where, own)].__getitem__, channels, resize, size)
        pieces.append(images)
        grey += [start + place for place in places]
        start += len(chunk)
    coloured = any(piece.ndim == 4 for piece in pieces)
    total = len(numbers) * size[0] * size[1] * (3 if coloured else 1)
    budget.take(total - taken, where(numbers[0]))
    out = np.empty((len(numbers), 3 if coloured else 1, *size), dtype=np.uint8)
    while pieces:
        piece = pieces.pop()
        start -= len(piece)
        out[start : start + len(piece)] = piece[:, None] if piece.ndim == 3 else piece.transpose(0, 3, 1, 2)
        if coloured and piece.ndim == 3:
            grey += range(start, start + len(piece))
    if converted is not None and not channels:
        converted += [where(numbers[place]) for place in sorted(grey)]
    return torch.from_numpy(out)


def _chunks(payloads: Iterable[Any], most: int) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    length = 0
    for payload in payloads:
        chunk.append(payload)
        length += len(memoryview(payload))
        if len(chunk) == most or length > _CHUNK_BYTES:
            yield chunk
            chunk, length = [], 0
    if chunk:
        yield chunk


SYSTEM = ("desktop.ini", "thumbs.db")  #: Names of files that Windows leaves in folders, in lower case


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


ARRAYS = ("x", "y", "ids", "class_names")  #: Arrays that are read; any others in the file are ignored


def read_npz(path: Path, budget: Budget) -> Listing:
    """Return an ``.npz`` file with ``x`` and ``y`` (and optionally ``ids``, ``class_names``) as a listing.

    uint8 arrays ``(n, H, W)``, ``(n, C, H, W)`` or ``(n, H, W, C)`` are images; other features become float32.
    """
    arrays = apart.read_arrays(path, budget, ARRAYS, ("x", "y"))
    x, ids, names = arrays["x"], arrays.get("ids"), arrays.get("class_names")
    labels = as_labels(arrays["y"], str(path), budget)
    if len(labels) > limits.SAMPLES:
        raise DataError(f"{path}: has {len(labels)} samples, more than {limits.SAMPLES}")
    for name, array in (("x", x), ("ids", ids)):
        if array is not None and (array.ndim == 0 or len(array) != len(labels)):
            raise DataError(f"{path}: {name} has shape {array.shape}, but y has {len(labels)} entries")
    if ids is not None and (ids.ndim != 1 or ids.dtype.kind not in "iubfUS"):
        raise DataError(f"{path}: ids are {ids.dtype} of shape {ids.shape}: expected one number or name per sample")
    if names is not None and (names.ndim != 1 or names.dtype.kind != "U"):
        raise DataError(f"{path}: class_names are {names.dtype} of shape {names.shape}: expected a list of names")
    known = None if names is None else check_names(map(str, names), str(path))
    tensor = _features(x, str(path), budget)
    return Listing(labels, lambda rows: tensor[rows], str(path), known, ids)


def _features(x: np.ndarray, where: str, budget: Budget) -> Tensor:
    if x.dtype.kind not in "fiub" or x.ndim < 2:
        raise DataError(f"{where}: x is {x.dtype} of shape {x.shape}: expected numbers of shape (n, ...)")
    check_sample(math.prod(x.shape[1:]), where)
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        if x.ndim == 3:
            x = x[:, None]
        elif x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
            x = x.transpose(0, 3, 1, 2)
        return torch.from_numpy(np.ascontiguousarray(x))
    if x.dtype == np.float32 and x.flags.c_contiguous:
        return torch.from_numpy(x)
    budget.take(4 * x.size, where)
    with np.errstate(over="ignore"):  # overflow gives infinity, which is reported later with its row
        tensor = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    budget.give_back(x.nbytes)
    return tensor
