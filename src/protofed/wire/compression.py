"""Lossless compression of a message's body, bounded by the length that its header announces."""

from __future__ import annotations

from typing import Any

from protofed.errors import ConfigError, PayloadError, unknown_name

COMPRESSIONS = ("none", "zstd")
FREE = 2**20
EXPANSION = 64
"""A frame of n bytes may become ``FREE + EXPANSION·n``: zeros shrink ten thousandfold, so that a few bytes could
otherwise claim a gigabyte at the other side. What shrinks more than this is sent as it is."""


def require(compression: str) -> None:
    """Check that ``compression`` can be used here.

    Raises:
        ConfigError: If there is none of that name, or its package is not installed.
    """
    if compression not in COMPRESSIONS:
        raise ConfigError(unknown_name("compression", compression, COMPRESSIONS))
    if compression == "zstd":
        _zstandard()


def compress(body: bytes) -> bytes:
    """Return ``body`` as one zstd frame that states its length; the same bytes for the same input.

    Where the receiver would refuse the frame (see :data:`EXPANSION`), ``body`` itself.
    """
    frame: bytes = _zstandard().ZstdCompressor().compress(body)
    return frame if len(body) <= FREE + EXPANSION * len(frame) else body


def decompress(frame: memoryview, length: int) -> bytes:
    """Return the ``length`` bytes that ``frame`` was made of.

    Raises:
        PayloadError: If it is damaged, holds another number of bytes, or many times its own.
    """
    if length > (most := FREE + EXPANSION * len(frame)):
        raise PayloadError(f"message: {len(frame)} bytes announce {length}, at most {most} are allowed")
    zstandard = _zstandard()
    try:
        # zstandard reserves what a frame announces, whatever maximum it is given: so that is read first.
        announced = zstandard.get_frame_parameters(frame).content_size
        if announced != length:
            raise PayloadError(f"message: holds {announced} bytes compressed, its header announces {length}")
        body: bytes = zstandard.ZstdDecompressor().decompress(frame, length, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise PayloadError(f"message: cannot be decompressed ({error})") from None
    return body


def _zstandard() -> Any:
    """Return the package, which only those who choose it need."""
    try:
        import zstandard
    except ImportError:
        raise ConfigError(
            "wire.compression=zstd needs the package zstandard: pip install protofed[flower]"
        ) from None
    return zstandard
