"""A strict reader of Thrift's compact protocol, in which parquet files store their metadata."""

from __future__ import annotations

from typing import Any, BinaryIO

from protofed.untrusted import limits

Struct = dict[int, Any]
"""Field number → number, bytes, list or struct; None for types that are skipped (booleans, bytes, doubles)."""

_DEEPEST = 16
_MOST_VALUES = 2**22
_TRUE, _FALSE, _BYTE, _I16, _I64, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 1, 2, 3, 4, 6, 7, 8, 9, 10, 12


def read_struct(file: BinaryIO) -> Struct:
    """Return the struct that begins at the current position of ``file``."""
    return _Reader(file).struct(0)


class _Reader:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = _MOST_VALUES

    def struct(self, depth: int) -> Struct:
        fields: Struct = {}
        number = 0
        while (first := self._byte()) & 15:
            number = number + (first >> 4) if first >> 4 else self._zigzag()
            fields[number] = self._value(first & 15, depth)
        return fields

    def _value(self, kind: int, depth: int, listed: bool = False) -> Any:
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            raise ValueError("too many values, or nested too deeply")
        if kind in (_TRUE, _FALSE):
            return self._skip(1) if listed else None
        if kind == _BYTE:
            return self._skip(1)
        if _I16 <= kind <= _I64:
            return self._zigzag()
        if kind == _DOUBLE:
            return self._skip(8)
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind in (_LIST, _SET):
            first = self._byte()
            count = first >> 4 if first >> 4 < 15 else self._varint()
            if count > self._left:
                raise ValueError("too many values")
            return [self._value(first & 15, depth + 1, listed=True) for _ in range(count)]
        if kind == _STRUCT:
            return self.struct(depth + 1)
        raise ValueError("damaged metadata")

    def _skip(self, length: int) -> None:
        self._bytes(length)

    def _bytes(self, length: int) -> bytes:
        if length > limits.METADATA_BYTES:
            raise ValueError("damaged metadata")
        data = self._file.read(length)
        if len(data) < length:
            raise ValueError("metadata ends early")
        return data

    def _byte(self) -> int:
        return self._bytes(1)[0]

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ValueError("damaged metadata")

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)
