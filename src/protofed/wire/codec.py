"""Payloads to bytes and back.

A message is a header of 4 bytes (magic, version, codec) and 4 bytes for each symbol that varies between messages,
followed by the fields in the order of the schema, little-endian, without padding. Both sides know the schema, so
names, types and fixed shapes are not sent, and the exact length of a message is known from its header: a
truncated or oversized message is refused before anything is read from it.
"""

from __future__ import annotations

import math
import struct
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from protofed.errors import PayloadError
from protofed.methods.schema import Field, Payload, Schema
from protofed.registry import Registry
from protofed.wire.validate import LABEL_LIMIT, check_structure, check_values

MAGIC = b"PF"
VERSION = 1

codecs: Registry[type[Codec]] = Registry("codec")


class Codec:
    """Encodes real numbers at the dtype's width; a lossy codec overrides the three ``real`` methods.

    Class attributes:
        number: Identifies the codec in the header.
        dtype: NumPy dtype of a real number on the wire.
        memory: torch dtype of a decoded one.
    """

    number: ClassVar[int]
    dtype: ClassVar[str]
    memory: ClassVar[torch.dtype]
    summary: ClassVar[str]

    def encode(self, payload: Payload, schema: Schema) -> bytes:
        """Return the message.

        Raises:
            PayloadError: If names, kinds or shapes do not fit the schema.
        """
        symbols = check_structure(payload, schema)
        free = _free_symbols(schema)
        header = MAGIC + bytes([VERSION, self.number])
        header += struct.pack(f"<{len(free)}I", *(symbols.get(s, 0) for s in free))
        return header + b"".join(self._encode_field(payload[n], f) for n, f in schema.fields.items())

    def decode(self, message: bytes, schema: Schema) -> Payload:
        """Return the validated payload.

        Raises:
            PayloadError: If the message is damaged or breaks any rule of the schema.
        """
        free = _free_symbols(schema)
        start = 4 + 4 * len(free)
        if len(message) < start or message[:3] != MAGIC + bytes([VERSION]):
            raise PayloadError(f"message: not a protofed message of version {VERSION}")
        if message[3] != self.number:
            raise PayloadError(f"message: encoded with codec {message[3]}, expected {self.number}")
        symbols = dict(schema.sizes)
        for symbol, size in zip(free, struct.unpack_from(f"<{len(free)}I", message, 4), strict=True):
            if size > schema.limits[symbol]:
                raise PayloadError(f"message: {symbol} may be at most {schema.limits[symbol]}, not {size}")
            symbols[symbol] = size
        shapes = {n: tuple(_size(s, symbols) for s in f.shape) for n, f in schema.fields.items()}
        lengths = {n: self._field_size(f, shapes[n]) for n, f in schema.fields.items()}
        if len(message) != start + sum(lengths.values()):
            raise PayloadError(
                f"message: has {len(message)} bytes, its header announces {start + sum(lengths.values())}"
            )
        payload: Payload = {}
        view = memoryview(message)
        for name, field in schema.fields.items():
            payload[name] = self._decode_field(view[start : start + lengths[name]], field, shapes[name])
            start += lengths[name]
        check_values(payload, schema)
        return payload

    # Real numbers: what a lossy codec changes.

    def real_size(self, shape: tuple[int, ...]) -> int:
        """Return how many bytes real numbers of ``shape`` take."""
        return math.prod(shape) * np.dtype(self.dtype).itemsize

    def encode_real(self, tensor: Tensor) -> bytes:
        """Return ``tensor`` as bytes."""
        return tensor.detach().cpu().contiguous().numpy().astype(self.dtype, copy=False).tobytes()

    def decode_real(self, data: memoryview, shape: tuple[int, ...]) -> Tensor:
        """Return the inverse of :meth:`encode_real`."""
        return torch.from_numpy(np.frombuffer(data, self.dtype).copy()).to(self.memory).reshape(shape)

    # Fields.

    def _field_size(self, field: Field, shape: tuple[int, ...]) -> int:
        if field.kind == "real":
            return self.real_size(shape)
        return math.prod(shape) * np.dtype(_INTEGERS[field.kind]).itemsize

    def _encode_field(self, tensor: Tensor, field: Field) -> bytes:
        if field.kind == "real":
            return self.encode_real(tensor)
        return tensor.detach().cpu().numpy().astype(_INTEGERS[field.kind]).tobytes()

    def _decode_field(self, data: memoryview, field: Field, shape: tuple[int, ...]) -> Tensor:
        if field.kind == "real":
            return self.decode_real(data, shape)
        return torch.from_numpy(np.frombuffer(data, _INTEGERS[field.kind]).astype("<i8")).reshape(shape)


def cast(payload: Payload, dtype: torch.dtype, device: torch.device | str = "cpu") -> Payload:
    """Return a decoded payload as its receiver computes with it: real numbers as ``dtype``, all on ``device``."""
    return {n: t.to(device, dtype) if t.is_floating_point() else t.to(device) for n, t in payload.items()}


_INTEGERS = {"label": "<u2", "count": "<u4"}


@codecs.register("float32")
class Float32(Codec):
    """Four bytes a number: exact for models in float32."""

    number, dtype, memory = 1, "<f4", torch.float32
    summary = "4 bytes a number, exact"


@codecs.register("float64")
class Float64(Codec):
    """Eight bytes a number, for comparisons in double precision."""

    number, dtype, memory = 2, "<f8", torch.float64
    summary = "8 bytes a number, for comparisons in double precision"


def get_codec(name: str) -> Codec:
    """Return the codec called ``name``.

    Raises:
        ConfigError: If there is none.
    """
    return codecs.get(name)()


def _free_symbols(schema: Schema) -> list[str]:
    """Return the symbols that a message's header has to state, in a fixed order."""
    if schema.num_classes > LABEL_LIMIT:
        raise PayloadError(f"schema: at most {LABEL_LIMIT} classes fit on the wire, not {schema.num_classes}")
    return sorted(schema.limits)


def _size(symbol: int | str, symbols: dict[str, int]) -> int:
    return symbol if isinstance(symbol, int) else symbols[symbol]
