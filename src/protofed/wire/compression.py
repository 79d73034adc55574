"""Lossless compression of message bodies, bounded by the length announced in the header."""

from __future__ import annotations

from typing import Any

from protofed.errors import ConfigError, PayloadError, unknown_name

COMPRESSIONS = ("none", "zstd")
FREE = 2**20
EXPANSION = 64
"""A frame of n bytes may expand to at most ``FREE + EXPANSION·n`` bytes. Zeros shrink ten thousandfold, so a few
bytes could otherwise claim a gigabyte at the receiver. Bodies that shrink more than this are sent uncompressed."""


def require(compression: str) -> None:
    """Check that ``compression`` can be used."""
    if compression not in COMPRESSIONS:
        raise ConfigError(unknown_name("compression", compression, COMPRESSIONS))
    if compression == "zstd":
        _zstandard()


def compress(body: bytes) -> bytes:
    """Compress ``body`` deterministically to one zstd frame that states its length.

    If the receiver would refuse the frame (see :data:`EXPANSION`), ``body`` itself is returned.
    """
    frame: bytes = _zstandard().ZstdCompressor().compress(body)
    return frame if len(body) <= FREE + EXPANSION * len(frame) else body


def decompress(frame: memoryview, length: int) -> bytes:
    """Decompress a frame to ``length`` bytes; a damaged one, or one that expands too much, is a PayloadError."""
    if length > (most := FREE + EXPANSION * len(frame)):
        raise PayloadError(f"message: {len(frame)} bytes announce {length}, at most {most} are allowed")
    zstandard = _zstandard()
    try:
        # zstandard allocates what a frame announces, whatever maximum it is given, so check the announcement first.
        announced = zstandard.get_frame_parameters(frame).content_size
        if announced != length:
            raise PayloadError(f"message: compressed body of {announced} bytes, but its header announces {length}")
        body: bytes = zstandard.ZstdDecompressor().decompress(frame, length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise PayloadError(f"message: cannot be decompressed ({error})") from None
    return body


def _zstandard() -> Any:
    try:
        import zstandard
    except ImportError:
        raise ConfigError(
            "wire.compression=zstd needs the package zstandard: pip install 'protofed[zstd]'"
        ) from None
    return zstandard
