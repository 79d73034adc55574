"""Records: named tensors in one block of bytes, which has the form of a safetensors file.

Many records lie one after the other in one file: creating, opening and removing a file for each of ten thousand
clients takes longer than to train a small one. Records of tensors with the same names, types and shapes have the
same header, which is made and checked once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, BinaryIO, NamedTuple

import torch
from torch import Tensor

from protofed.storage.snapshots import KEY, VERSION
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
}
"""Types of tensors by their names in safetensors files."""
_NAMES = {dtype: name for name, dtype in TYPES.items()}
_MOST = 1024  #: Number of layouts that are remembered
_ALIGNED = 8  #: Headers take a multiple of as many bytes, as the format asks


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


class Records:
    """Packs and unpacks records."""

    def __init__(self) -> None:
        self._made: dict[Any, _Layout] = {}
        self._read: dict[bytes, _Layout] = {}
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def pack(self, tensors: Mapping[str, Tensor]) -> memoryview:
        """Return tensors as a record, which is valid until the next call."""
        key = tuple((name, tensor.dtype, tensor.shape) for name, tensor in tensors.items())
        layout = self._made.get(key) or _remember(self._made, key, _layout(tensors))
        if len(self._buffer) < layout.size:
            self._buffer = torch.empty(layout.size, dtype=torch.uint8)
        record = self._buffer[: layout.size]
        raw: memoryview = record.numpy().data
        raw[: len(layout.header)] = layout.header
        if tensors:
            with torch.no_grad():
                torch._foreach_copy_(layout.views(record), [tensors[e.name] for e in layout.entries])
        return raw

    def unpack(self, record: Tensor) -> dict[str, Tensor]:
        """Return the tensors of a ``(n,)`` uint8 record, which share its memory; ValueError if it is damaged."""
        raw = record.numpy().data
        length = int.from_bytes(raw[:8], "little")
        if length > min(limits.TENSOR_HEADER_BYTES, len(raw) - 8):
            raise ValueError("it ends within its header")
        header = bytes(raw[: 8 + length])
        layout = self._read.get(header) or _remember(self._read, header, _parse(header))
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


def _remember(layouts: dict[Any, _Layout], key: Any, layout: _Layout) -> _Layout:
    if len(layouts) >= _MOST:
        del layouts[next(iter(layouts))]
    layouts[key] = layout
    return layout


def _layout(tensors: Mapping[str, Tensor]) -> _Layout:
    """Return the layout of a record: large types first, so that each tensor is aligned."""
    table: dict[str, Any] = {"__metadata__": {KEY: str(VERSION)}}
    place = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        end = place + tensor.nbytes
        table[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return _parse(len(text).to_bytes(8, "little") + text)


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
