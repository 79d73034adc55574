"""Conversion of ``.npz`` files to listings; headers are checked before memory is allocated."""

from __future__ import annotations

import io
import math
import struct
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import IO, BinaryIO

import numpy as np
import torch
from torch import Tensor

from protofed.data.checks import as_labels, check_names, check_sample, open_file
from protofed.data.pool import Listing
from protofed.errors import DataError
from protofed.untrusted import limits
from protofed.untrusted.limits import Budget

ARRAYS = ("x", "y", "ids", "class_names")
"""Arrays that are read; any others in the file are ignored."""

_PORTION = 2**20
_DAMAGE = (
    ValueError,
    OSError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    NotImplementedError,
    RuntimeError,
    SyntaxError,
    TypeError,
    LookupError,
    ArithmeticError,
    MemoryError,
)


def read_npz(path: Path, budget: Budget) -> Listing:
    """Return an ``.npz`` file with ``x`` and ``y`` (and optionally ``ids``, ``class_names``) as a listing.

    uint8 arrays ``(n, H, W)``, ``(n, C, H, W)`` or ``(n, H, W, C)`` are images; other features become float32.
    """
    try:
        arrays = _read(path, budget)
    except DataError:
        raise
    except _DAMAGE as error:
        raise DataError(f"{path}: not a readable .npz file ({type(error).__name__})") from None
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
        return _as_images(x)
    if x.dtype == np.float32 and x.flags.c_contiguous:
        return torch.from_numpy(x)
    budget.take(4 * x.size, where)
    with np.errstate(over="ignore"):  # overflow gives infinity, which is reported later with its row
        tensor = torch.from_numpy(np.ascontiguousarray(x, dtype=np.float32))
    budget.give_back(x.nbytes)
    return tensor


def _as_images(x: np.ndarray) -> Tensor:
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[-1] in (1, 3) and x.shape[1] not in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(x))


def _read(path: Path, budget: Budget) -> dict[str, np.ndarray]:
    with open_file(path) as file, open_zip(file) as archive:
        members = archive.infolist()
        names = [member.filename.removesuffix(".npy") for member in members]
        if len(names) > limits.MEMBERS:
            raise DataError(f"{path}: holds {len(names)} arrays, more than {limits.MEMBERS}")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DataError(f"{path}: holds several arrays called {twice!r}")
        for name in ("x", "y"):
            if name not in names:
                raise DataError(f"{path}: no array {name!r}; it holds {', '.join(sorted(names)) or 'nothing'}")
        wanted = [(name, member) for name, member in zip(names, members, strict=True) if name in ARRAYS]
        return {name: _array(archive, member, f"{path}: {name}", budget) for name, member in wanted}


def open_zip(file: BinaryIO) -> zipfile.ZipFile:
    """Open an archive; ``zipfile.BadZipFile`` if it is none, or its directory is long."""
    return zipfile.ZipFile(_InPortions(file))


def _array(archive: zipfile.ZipFile, member: zipfile.ZipInfo, where: str, budget: Budget) -> np.ndarray:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(f"{where}: is compressed by an unusual method: save it with numpy.savez_compressed")
    with archive.open(member) as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        version = np.lib.format.read_magic(stream)
        # Headers of later versions may have any length, and plain arrays do not need them.
        if version != (1, 0):
            raise DataError(f"{where}: has a header of version {version[0]}.{version[1]}: expected a plain array")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream, max_header_size=10_000)
        if dtype.kind not in "biufUS" or dtype.subdtype is not None:
            raise DataError(f"{where}: not a readable .npz file (holds {_kind(dtype)}, not numbers or text)")
        if len(shape) > limits.DIMENSIONS or any(length < 0 for length in shape):
            raise DataError(f"{where}: has the impossible shape {shape}")
        size, stored = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
        if size != stored:
            raise DataError(f"{where}: announces {size} bytes ({dtype} of shape {shape}), but {stored} follow")
        budget.take(size, where)
        array = np.empty(math.prod(shape), dtype)
        _fill(array, stream)
        return array.reshape(shape, order="F" if fortran else "C")


def _fill(array: np.ndarray, stream: IO[bytes]) -> None:
    target = array.view(np.uint8) if array.nbytes else np.empty(0, np.uint8)
    done = 0
    while done < len(target):
        portion = stream.read(min(_PORTION, len(target) - done))
        if not portion:
            raise EOFError
        target[done : done + len(portion)] = np.frombuffer(portion, np.uint8)
        done += len(portion)
    stream.read(1)  # reaching the end makes zipfile compare the checksum


def _kind(dtype: np.dtype) -> str:
    return "objects, which are never unpickled" if dtype.hasobject else str(dtype)[:60]


class _InPortions(io.RawIOBase):
    """A file of which only a limited portion is read at once; a long archive directory is refused."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            position = self._file.tell()
            size = self._file.seek(0, io.SEEK_END) - position
            self._file.seek(position)
        if size > 2 * _PORTION:
            raise zipfile.BadZipFile("the directory is too long")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
