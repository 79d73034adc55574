"""The digits that come with the package, as the clients' data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray

FILE = resources.files(__package__) / "digits.npz"
SIDE = 28  #: Pixels


@cache
def load() -> dict[str, NDArray[np.uint8]]:
    """Return ``train_x`` ``(640, 28, 28)``, ``train_y``, ``test_x`` ``(360, 28, 28)`` and ``test_y``, by digit."""
    with FILE.open("rb") as file, np.load(file) as arrays:
        return {name: arrays[name] for name in ("train_x", "train_y", "test_x", "test_y")}


def rows(split: str, digits: Sequence[int]) -> NDArray[np.int64]:
    """Return the positions of the images of ``digits`` in ``split``, digit by digit."""
    y = load()[f"{split}_y"]
    return np.concatenate([np.flatnonzero(y == digit) for digit in digits])


@cache
def sheet(columns: int) -> bytes:
    """Return all test images in rows of ``columns``, as a PNG: black strokes, transparent paper."""
    import io

    from PIL import Image

    x = load()["test_x"]
    height = -(-len(x) // columns)
    ink = np.zeros((height * columns, SIDE, SIDE), np.uint8)
    ink[: len(x)] = x
    paper = ink.reshape(height, columns, SIDE, SIDE).swapaxes(1, 2).reshape(height * SIDE, columns * SIDE)
    strokes = Image.fromarray(paper)
    file = io.BytesIO()
    Image.merge("LA", (Image.new("L", strokes.size), strokes)).save(file, "PNG", optimize=True)
    return file.getvalue()
