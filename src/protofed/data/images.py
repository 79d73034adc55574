"""Decoding of images to uint8 tensors, in a process with limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofed.data import apart
from protofed.untrusted import limits
from protofed.untrusted.limits import Budget

SUFFIXES = frozenset([".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"])
_CHUNK = 256
_CHUNK_BYTES = 64 * limits.MiB
"""Bytes of the images that are decoded in one go, encoded or not, unless a single one has more."""


def decode(
    payload: Callable[[int], Any],
    rows: Tensor,
    where: Callable[[int], str],
    budget: Budget,
    channels: int = 0,
    resize: int = 0,
    converted: list[str] | None = None,
) -> Tensor:
    """Decode images, as :func:`protofed.data.apart.read_images` does in parts.

    Args:
        converted: Receives, with ``channels = 0``, the descriptions of grey images that were converted to colour
            because others are in colour.

    Returns:
        uint8 ``(n, C, H, W)``.

    Raises:
        DataError: If an image is not readable, not 8-bit or too large, or the images differ in size.
    """
    numbers = rows.tolist()
    first, _ = apart.read_images([payload(numbers[0])], lambda _: where(numbers[0]), channels, resize, None)
    size, taken = first.shape[1:3], len(numbers) * first.nbytes
    budget.take(taken, where(numbers[0]))
    pieces = [first]
    grey: list[int] = []  # among coloured ones
    most = min(_CHUNK, max(1, _CHUNK_BYTES // first.nbytes))
    start = 1
    for chunk in _chunks(map(payload, numbers[1:]), most):
        own = numbers[start : start + len(chunk)]
        images, places = apart.read_images(chunk, [*map(where, own)].__getitem__, channels, resize, size)
        pieces.append(images)
        grey += [start + place for place in places]
        start += len(chunk)
    coloured = any(piece.ndim == 4 for piece in pieces)
    total = len(numbers) * size[0] * size[1] * (3 if coloured else 1)
    budget.take(total - taken, where(numbers[0]))
    out = np.empty((len(numbers), 3 if coloured else 1, *size), dtype=np.uint8)
    while pieces:
        piece = pieces.pop()
        start -= len(piece)
        out[start : start + len(piece)] = piece[:, None] if piece.ndim == 3 else piece.transpose(0, 3, 1, 2)
        if coloured and piece.ndim == 3:
            grey += range(start, start + len(piece))
    if converted is not None and not channels:
        converted += [where(numbers[place]) for place in sorted(grey)]
    return torch.from_numpy(out)


def _chunks(payloads: Iterable[Any], most: int) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    length = 0
    for payload in payloads:
        chunk.append(payload)
        length += len(memoryview(payload))
        if len(chunk) == most or length > _CHUNK_BYTES:
            yield chunk
            chunk, length = [], 0
    if chunk:
        yield chunk
