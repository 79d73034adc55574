"""Lossless compression of a message's body, bounded by the length that its header announces."""

from __future__ import annotations

from typing import Any

from protofed.errors import ConfigError, PayloadError, unknown_name

COMPRESSIONS = ("none", "zstd")


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
    """Return ``body`` as one zstd frame that states its length; the same bytes for the same input."""
    frame: bytes = _zstandard().ZstdCompressor().compress(body)
    return frame


def decompress(frame: memoryview, length: int) -> bytes:
    """Return the ``length`` bytes that ``frame`` was made of.

    Raises:
        PayloadError: If it is damaged, or holds another number of bytes.
    """
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
