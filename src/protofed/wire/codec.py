"""Encoding of payloads as bytes and decoding.

A message is a header of 4 bytes (magic, version, codec) and 4 bytes for each symbol that varies between messages,
followed by the fields in the order of the schema, little-endian, without padding. Both sides know the schema, so
names, types and fixed shapes are not sent. The header determines the exact length of a message, so a truncated or
oversized message is refused before any field is read. The fields may be compressed but the header never is, so this
holds for compressed messages too.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from protofed.errors import PayloadError
from protofed.registry import Registry
from protofed.untrusted import limits
from protofed.wire.compression import compress, decompress, require
from protofed.wire.schema import Field, Payload, Schema
from protofed.wire.validate import check_structure, check_values

MAGIC = b"PF"
VERSION = 1
COMPRESSED = 0x80  #: Flag in the codec's byte, set if the fields are compressed

codecs: Registry[type[Codec]] = Registry("codec")


class Codec:
    """Codec that encodes real numbers as ``dtype``; a lossy codec overrides the three ``real`` methods."""

    number: ClassVar[int]  #: number of the codec in the header, below 128
    dtype: ClassVar[str]  #: NumPy dtype of real numbers on the wire; for a lossy codec, of those sent exactly
    memory: ClassVar[torch.dtype]  #: torch dtype of decoded real numbers
    summary: ClassVar[str]  #: one-line description

    def __init__(self, compression: str = "none") -> None:
        require(compression)
        self.compression = compression

    def encode(self, payload: Payload, schema: Schema) -> bytes:
        """Encode a payload."""
        symbols = check_structure(payload, schema)
        free = _free_symbols(schema)
        sizes = struct.pack(f"<{len(free)}I", *(symbols.get(s, 0) for s in free))
        body = b"".join(self._encode_field(n, payload[n], f) for n, f in schema.fields.items())
        kind = self.number
        if self.compression != "none" and len(packed := compress(body)) < len(body):
            kind, body = kind | COMPRESSED, packed
        return MAGIC + bytes([VERSION, kind]) + sizes + body

    def check(self, payload: Payload, schema: Schema) -> None:
        """Raise PayloadError if the codec cannot represent a payload, or its receiver would refuse it."""
        check_values(payload, schema)
        if type(self).encode_real is not Codec.encode_real:
            self.encode(payload, schema)

    def decode(self, message: bytes, schema: Schema) -> Payload:
        """Decode and validate a message."""
        if len(message) > (allowed := self.largest(schema)):
            raise PayloadError(f"message: has {len(message)} bytes, at most {allowed} are allowed")
        free = _free_symbols(schema)
        start = _header_size(schema)
        if len(message) < start or message[:3] != MAGIC + bytes([VERSION]):
            raise PayloadError(f"message: not a protofed message of version {VERSION}")
        if (number := message[3] & ~COMPRESSED) != self.number:
            raise PayloadError(f"message: encoded with codec {number}, expected {self.number}")
        symbols = dict(schema.sizes)
        for symbol, size in zip(free, struct.unpack_from(f"<{len(free)}I", message, 4), strict=True):
            if size > schema.limits[symbol]:
                raise PayloadError(f"message: {symbol} may be at most {schema.limits[symbol]}, not {size}")
            symbols[symbol] = size
        lengths = self._lengths(schema, symbols)
        view = self._body(message, start, sum(lengths.values()))
        payload: Payload = {}
        start = 0
        for name, field in schema.fields.items():
            data = view[start : start + lengths[name]]
            payload[name] = self._decode_field(name, data, field, _shape(field, symbols))
            start += lengths[name]
        check_values(payload, schema)
        return payload

    def largest(self, schema: Schema) -> int:
        """Return the maximum length of a message in bytes; :meth:`decode` refuses longer ones."""
        return _header_size(schema) + sum(self._lengths(schema, {**schema.sizes, **schema.limits}).values())

    def _body(self, message: bytes, start: int, length: int) -> memoryview:
        """Return the ``length`` bytes of all fields; the header ends at ``start``."""
        body = memoryview(message)[start:]
        if not message[3] & COMPRESSED:
            if len(body) != length:
                raise PayloadError(f"message: has {len(message)} bytes, its header announces {start + length}")
            return body
        if self.compression == "none":
            raise PayloadError("message: compressed, expected wire.compression=none")
        return memoryview(decompress(body, length))

    # Encoding of real numbers, overridden by lossy codecs.

    def real_size(self, shape: tuple[int, ...]) -> int:
        """Return the number of bytes that real numbers of ``shape`` take."""
        return math.prod(shape) * np.dtype(self.dtype).itemsize

    def encode_real(self, name: str, tensor: Tensor) -> bytes:
        """Encode the real numbers of one field."""
        return self.array(tensor).astype(self.dtype, copy=False).tobytes()

    def decode_real(self, name: str, data: memoryview, shape: tuple[int, ...]) -> Tensor:
        """Decode the real numbers of one field; the inverse of :meth:`encode_real`."""
        return torch.from_numpy(np.frombuffer(data, self.dtype).copy()).to(self.memory).reshape(shape)

    def array(self, tensor: Tensor) -> np.ndarray:
        """Return ``tensor`` as a CPU array of the dtype to which it will be decoded."""
        return tensor.detach().to("cpu", self.memory).contiguous().numpy()

    # Fields.

    def _lengths(self, schema: Schema, symbols: Mapping[str, int]) -> dict[str, int]:
        return {name: self._field_size(field, _shape(field, symbols)) for name, field in schema.fields.items()}

    def _field_size(self, field: Field, shape: tuple[int, ...]) -> int:
        if field.kind != "real":
            return math.prod(shape) * np.dtype(_INTEGERS[field.kind]).itemsize
        return Codec.real_size(self, shape) if field.exact else self.real_size(shape)

    def _encode_field(self, name: str, tensor: Tensor, field: Field) -> bytes:
        if field.kind == "real":
            return Codec.encode_real(self, name, tensor) if field.exact else self.encode_real(name, tensor)
        numbers = tensor.detach().cpu().numpy()
        sent = numbers.astype(_INTEGERS[field.kind])
        if (sent != numbers).any():  # they would arrive as other classes or counts
            raise PayloadError(f"{name}: contains integers that do not fit {sent.itemsize} bytes")
        return sent.tobytes()

    def _decode_field(self, name: str, data: memoryview, field: Field, shape: tuple[int, ...]) -> Tensor:
        if field.kind == "real":
            if field.exact:
                return Codec.decode_real(self, name, data, shape)
            return self.decode_real(name, data, shape)
        return torch.from_numpy(np.frombuffer(data, _INTEGERS[field.kind]).astype("<i8")).reshape(shape)


def cast(payload: Payload, dtype: torch.dtype, device: torch.device | str = "cpu") -> Payload:
    """Convert a decoded payload for its receiver."""
    return {n: t.to(device, dtype) if t.is_floating_point() else t.to(device) for n, t in payload.items()}


_INTEGERS = {"label": "<u2", "count": "<u4"}


@codecs.register("float32")
class Float32(Codec):
    """Four bytes per number; exact for models in float32."""

    number, dtype, memory = 1, "<f4", torch.float32
    summary = "4 bytes per number, exact"


@codecs.register("float64")
class Float64(Codec):
    """Eight bytes per number, for comparisons in double precision."""

    number, dtype, memory = 2, "<f8", torch.float64
    summary = "8 bytes per number, for comparisons in double precision"


def get_codec(name: str, compression: str = "none") -> Codec:
    """Return the codec called ``name``, with message bodies compressed by ``none`` or ``zstd``."""
    return codecs.get(name)(compression)


def _free_symbols(schema: Schema) -> list[str]:
    """Return the symbols whose values are in the message header, in a fixed order."""
    if schema.num_classes > limits.CLASSES:
        raise PayloadError(f"schema: at most {limits.CLASSES} classes fit on the wire, not {schema.num_classes}")
    return sorted(schema.limits)


def _header_size(schema: Schema) -> int:
    return 4 + 4 * len(_free_symbols(schema))


def _shape(field: Field, symbols: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(s if isinstance(s, int) else symbols[s] for s in field.shape)
