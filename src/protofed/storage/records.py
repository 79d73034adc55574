"""Records: named tensors in one block of bytes, which has the form of a safetensors file.

Many records lie one after the other in one file: creating, opening and removing a file for each of ten thousand
clients takes longer than to train a small one. Records of tensors with the same names, types and shapes have the
same header, which is made and checked once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from protofed.untrusted import limits
from protofed.untrusted.reading import parse_json

TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
    **{f"U{bits}": getattr(torch, f"uint{bits}") for bits in (16, 32, 64)},
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
"""Types of tensors by their names in safetensors files."""
_NAMES = {dtype: name for name, dtype in TYPES.items()}
_MANY = 1024  #: Number of tensors from which on a layout is not remembered
_ALIGNED = 8  #: Headers take a multiple of as many bytes, as the format asks
KEY = "protofed.snapshot"  #: Name in the header of a file or a record, under which the format version stands
VERSION = 1  #: Format version; 2 had the state of optimisers


class _Entry(NamedTuple):
    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class _Layout(NamedTuple):
    """The header of a record, the places of its tensors from its beginning on, and its size in bytes."""

    header: bytes
    entries: tuple[_Entry, ...]
    size: int

    def views(self, record: Tensor) -> list[Tensor]:
        """Return the tensors of a record, which share its memory."""
        return [record[e.start : e.stop].view(e.dtype).view(e.shape) for e in self.entries]


def pack(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> memoryview:
    """Return tensors as a record, with ``metadata`` in its header in place of the format version."""
    make = _layout if len(tensors) < _MANY else _layout.__wrapped__
    told = tuple((metadata or {KEY: str(VERSION)}).items())
    layout = make(tuple((n, t.dtype, t.shape) for n, t in tensors.items()), told)
    record = torch.empty(layout.size, dtype=torch.uint8)
    raw: memoryview = record.numpy().data
    raw[: len(layout.header)] = layout.header
    if tensors:
        with torch.no_grad():
            torch._foreach_copy_(layout.views(record), [tensors[e.name] for e in layout.entries])
    return raw


def unpack(record: Tensor) -> dict[str, Tensor]:
    """Return the tensors of a ``(n,)`` uint8 record, which share its memory; ValueError if it is damaged."""
    raw = record.numpy().data
    length = int.from_bytes(raw[:8], "little")
    if length > min(limits.TENSOR_HEADER_BYTES, len(raw) - 8):
        raise ValueError("it ends within its header")
    layout = _parse(bytes(raw[: 8 + length]))
    if layout.size != len(raw):
        raise ValueError(f"it has {len(raw)} bytes instead of {layout.size}")
    return dict(zip((e.name for e in layout.entries), layout.views(record), strict=True))


def read_at(file: BinaryIO, offset: int, length: int) -> Tensor:
    """Return a part of a file, ``(length,)`` uint8; raise ValueError if the file is shorter."""
    part = torch.empty(length, dtype=torch.uint8)
    left = part.numpy().data
    file.seek(offset)
    while len(left):
        read = file.readinto(left)  # type: ignore[attr-defined]
        if not read:
            raise ValueError("the file is too short")
        left = left[read:]
    return part


def write_at(file: BinaryIO, offset: int, data: memoryview) -> None:
    """Write to a place in a file."""
    file.seek(offset)
    while len(data):
        data = data[file.write(data) :]


@lru_cache(1024)
def _layout(kinds: tuple[Any, ...], metadata: tuple[Any, ...]) -> _Layout:
    """Return the layout of a record: large types first, so that each tensor is aligned."""
    table: dict[str, Any] = {"__metadata__": dict(metadata)}
    place = 0
    for name, dtype, shape in sorted(kinds, key=lambda kind: -kind[1].itemsize):
        end = place + math.prod(shape) * dtype.itemsize
        table[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return _parse.__wrapped__(len(text).to_bytes(8, "little") + text)


@lru_cache(1024)
def _parse(header: bytes) -> _Layout:
    """Return the layout that a record's header describes."""
    table = parse_json(header[8:])
    if not isinstance(table, dict) or len(header) % _ALIGNED:
        raise ValueError("its header is damaged")
    table.pop("__metadata__", None)
    entries: list[_Entry] = []
    place = len(header)
    for name, fields in table.items():
        try:
            dtype, shape = TYPES[fields["dtype"]], fields["shape"]
            first, last = fields["data_offsets"]
            sound = all(type(n) is int and n >= 0 for n in shape) and len(shape) <= limits.DIMENSIONS
        except (KeyError, TypeError, ValueError):
            sound = False
        if not sound or (first, last) != (place - len(header), first + math.prod(shape) * dtype.itemsize):
            raise ValueError(f"{name[:80]!r} is not where it should be")
        if place % dtype.itemsize:
            raise ValueError(f"{name[:80]!r} is not aligned")
        entries.append(_Entry(name, dtype, tuple(shape), place, place := last + len(header)))
    return _Layout(header, tuple(entries), place)
