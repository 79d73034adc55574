"""Decoding of images to uint8 tensors; the number of pixels is checked before an image is decoded."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofed.errors import DataError
from protofed.untrusted import limits
from protofed.untrusted.limits import Budget

SUFFIXES = frozenset([".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"])
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""Formats that are decoded, whatever the file name."""

_GREY = frozenset({"1", "L", "LA"})
_MODE = {1: "L", 3: "RGB"}
_CHUNK = 256
_LARGE = 4096  # bytes of an encoded image above which threads gain more than the interpreter lock costs


class _ColourFoundError(Exception):
    """Raised when a data set taken for grey contains a colour image."""


def decode(
    payload: Callable[[int], Any],
    rows: Tensor,
    where: Callable[[int], str],
    budget: Budget,
    channels: int = 0,
    resize: int = 0,
    converted: list[str] | None = None,
) -> Tensor:
    """Decode images.

    Args:
        payload: Returns the encoded bytes of a row (anything with the buffer protocol).
        channels: 1 for grey, 3 for RGB, 0 for grey if all images are grey and RGB otherwise.
        resize: Side in pixels to which images are scaled and centre-cropped; 0 keeps the stored size.
        converted: Receives, with ``channels = 0``, the descriptions of grey images that were converted to colour
            because others are in colour.

    Returns:
        uint8 ``(n, C, H, W)``.

    Raises:
        DataError: If an image is not readable, not 8-bit or too large, or the images differ in size.
    """
    numbers, left = rows.tolist(), budget.left
    # Not around each image, because threads share the warning filters.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tensor, grey = _decode(payload, numbers, where, budget, channels, resize)
        except _ColourFoundError:
            budget.left = left
            tensor, grey = _decode(payload, numbers, where, budget, 3, resize)
    if converted is not None and not channels:
        converted += [where(row) for row in grey]
    return tensor


def _decode(
    payload: Callable[[int], Any],
    rows: list[int],
    where: Callable[[int], str],
    budget: Budget,
    channels: int,
    resize: int,
) -> tuple[Tensor, list[int]]:
    """Return the images, and the rows of those that were converted from grey to colour."""
    first, _ = _one(payload(rows[0]), where(rows[0]), channels, resize)
    fixed = channels or (1 if first.ndim == 2 else 3)
    strict = not channels and fixed == 1
    budget.take(len(rows) * first.nbytes, where(rows[0]))
    out = np.empty((len(rows), *first.shape), dtype=np.uint8)
    coloured = np.zeros(len(rows), dtype=bool)

    def fill(start: int) -> None:
        for position in range(start, min(start + _CHUNK, len(rows))):
            row = rows[position]
            image, coloured[position] = _one(payload(row), where(row), fixed, resize, strict)
            if image.shape != first.shape:
                raise DataError(
                    f"{where(row)}: image of {_size(image)} pixels, but others have {_size(first)}: "
                    "set data.options.resize"
                )
            out[position] = image

    starts = range(0, len(rows), _CHUNK)
    if len(memoryview(payload(rows[0]))) < _LARGE:
        for start in starts:
            fill(start)
    else:
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for _ in pool.map(fill, starts):
                pass
    tensor = torch.from_numpy(out)
    shaped = tensor.unsqueeze(1) if first.ndim == 2 else tensor.permute(0, 3, 1, 2).contiguous()
    return shaped, [rows[position] for position in np.flatnonzero(coloured)]


def _one(encoded: Any, where: str, channels: int, resize: int, strict: bool = False) -> tuple[np.ndarray, bool]:
    """Return one image, ``(H, W)`` or ``(H, W, 3)``, and whether it was converted from grey to colour.

    With ``strict``, colour is not converted to grey.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(io.BytesIO(encoded), formats=FORMATS) as image:
            mode = image.mode
            if not 0 < image.width * image.height <= limits.PIXELS:
                raise DataError(
                    f"{where}: image of {image.height}×{image.width} pixels: at most {limits.PIXELS} are read"
                )
            if image.format == "JPEG" and bytes(encoded).count(b"\xff\xda") > limits.SCANS:
                raise DataError(f"{where}: image of more than {limits.SCANS} scans: save it anew")
            if mode.startswith(("I", "F")):
                raise DataError(f"{where}: image with more than 8 bits per channel ({mode}): save it with 8 bits")
            if strict and mode not in _GREY:
                raise _ColourFoundError
            target = _MODE[channels or (1 if mode in _GREY else 3)]
            if resize:
                image.draft(target, (resize, resize))  # lets a JPEG decoder skip unneeded resolution
            picture = image.convert(target) if image.mode != target else image
            if resize:
                picture = ImageOps.fit(picture, (resize, resize), Image.Resampling.BILINEAR)
            return np.asarray(picture), mode in _GREY and target == "RGB"
    except (DataError, _ColourFoundError):
        raise
    except Image.DecompressionBombError:
        raise DataError(f"{where}: image of more than {limits.PIXELS} pixels, the maximum") from None
    except Exception as error:  # PIL raises many types for a damaged file
        raise DataError(f"{where}: not a readable image ({type(error).__name__})") from None


def _size(image: np.ndarray) -> str:
    return f"{image.shape[0]}×{image.shape[1]}"
