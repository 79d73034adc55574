"""Images that nobody should decode: name → bytes, and what the refusal says."""

from __future__ import annotations

import io
import struct
import zlib

from PIL import Image


def encoded(form: str, size: tuple[int, int] = (4, 4), mode: str = "RGB") -> bytes:
    """Return an ordinary image."""
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, form)
    return buffer.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int, *more: bytes, data: bytes = b"") -> bytes:
    """Return a grey PNG with a size as given, whatever follows it."""
    size = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + size + b"".join(more) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def patched(content: bytes, at: int, form: str, *values: int) -> bytes:
    """Return ``content`` with numbers written over it."""
    return content[:at] + struct.pack(form, *values) + content[at + struct.calcsize(form) :]


def _jpeg() -> bytes:
    content = encoded("JPEG")
    return patched(content, content.index(b"\xff\xc0") + 5, ">HH", 65500, 65500)


def _scans() -> bytes:
    """The last scan of a progressive JPEG over and over, each of which goes through all pixels."""
    buffer = io.BytesIO()
    Image.new("L", (64, 64)).save(buffer, "JPEG", progressive=True)
    content = buffer.getvalue()
    return content[:-2] + content[content.rindex(b"\xff\xda") : -2] * 200 + content[-2:]


_ZEROS = zlib.compress(bytes(70_000_000), 1)

IMAGES: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "not a readable image"),
    "text": (b"not an image at all", "not a readable image"),
    "bomb": (png(60_000, 60_000), "image of more than"),
    "large": (png(9_000, 9_000), "image of 9000×9000 pixels"),
    "very wide": (png(2**31 - 1, 1), "image of more than"),
    "no pixels": (png(0, 0), "not a readable image|image of 0"),
    "no data": (png(64, 64), "not a readable image"),
    "half": (encoded("PNG", (64, 64))[:60], "not a readable image"),
    "half a JPEG": (encoded("JPEG", (64, 64))[:-100], "not a readable image"),
    "text bomb": (png(4, 4, chunk(b"zTXt", b"a\0\0" + _ZEROS), data=bytes(20)), "not a readable image"),
    "profile bomb": (png(4, 4, chunk(b"iCCP", b"a\0\0" + _ZEROS)), "not a readable image"),
    "more than 8 bits": (encoded("PNG", mode="I;16"), "more than 8 bits"),
    "floats": (encoded("TIFF", mode="F"), "more than 8 bits"),
    "PostScript": (encoded("EPS"), "not a readable image"),
    "PDF": (b"%PDF-1.4\n%%EOF", "not a readable image"),
    "icon": (encoded("ICO", (16, 16)), "not a readable image"),
    "bitmap bomb": (patched(encoded("BMP"), 18, "<ii", 50_000, 50_000), "image of more than"),
    "pixmap bomb": (b"P5 60000 60000 255\n" + bytes(16), "image of more than"),
    "pixmap without end": (b"P5 " + b"9" * 5000, "not a readable image"),
    "JPEG bomb": (_jpeg(), "image of more than"),
    "JPEG of many scans": (_scans(), "image of more than 100 scans"),
    "GIF bomb": (patched(encoded("GIF"), 6, "<HH", 65535, 65535), "image of more than"),
    "truncated TIFF": (encoded("TIFF", (64, 64))[:200], "not a readable image"),
}
