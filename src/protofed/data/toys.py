"""Data sets that need no files: scikit-learn's digits and the spiral of ProtoNorm's motivating example."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from protofed.compute.seeding import generator
from protofed.data.options import DataOptions
from protofed.data.pool import Dataset, Pool, datasets
from protofed.options import NoOptions, Options, option


@dataclass(frozen=True)
class SpiralOptions(Options):
    """Shape of the spiral (ProtoNorm, Sec. 3.2 and supplement A)."""

    arms: int = option(6, "number of arms = classes", least=1)
    points: int = option(5000, "points per class", least=1)
    noise: float = option(0.2, "standard deviation of the angle in radians (supplement A prints 1)", least=0)
    turns: float = option(0.5, "how far an arm winds from its inner to its outer end, in turns")
    winding: Literal["equal", "printed"] = option(
        "equal", "equal: all arms wind alike | printed: arm k winds k/6 turns, as supplement A prints"
    )


def spiral(data: DataOptions, options: SpiralOptions, seed: int) -> Pool:
    """Return interleaved spiral arms in the plane with radii from 1 to 10: x ``(arms * points, 2)`` float32.

    Arm ``k`` starts at the angle ``2πk / arms``; the supplement's formula gives the same start for six arms.
    Its noise of one radian is wider than the gap between two arms and its arm 0 does not wind at all, so
    by default the noise is smaller and the arms wind alike, as in the paper's figure of separable arms.
    """
    along = torch.linspace(0, 1, options.points, dtype=torch.float64)
    arm = torch.arange(options.arms, dtype=torch.float64)[:, None]
    turns = arm / 6 if options.winding == "printed" else torch.full_like(arm, options.turns)
    noise = torch.randn(options.arms, options.points, generator=generator(seed, "spiral"), dtype=torch.float64)
    angle = 2 * math.pi * (arm / options.arms + turns * along) + options.noise * noise
    radius = 1 + 9 * along
    x = torch.stack([radius * angle.sin(), radius * angle.cos()], dim=2).reshape(-1, 2)
    y = torch.arange(options.arms).repeat_interleave(options.points)
    return Pool(x.float(), y, tuple(f"arm {k}" for k in range(options.arms)))


def digits(data: DataOptions, options: NoOptions, seed: int) -> Pool:
    """Return scikit-learn's 1797 digits: x ``(1797, 1, 8, 8)`` uint8, scaled from 0..16 to 0..255."""
    images, labels = read_digits()
    x = torch.from_numpy(images).mul(255 / 16).round().to(torch.uint8).unsqueeze(1)
    return Pool(x, torch.from_numpy(labels), tuple(str(d) for d in range(10)))


def find_table(name: str) -> Path | None:
    """Return a table of scikit-learn without importing it, which takes longer than a round on its data."""
    spec = find_spec("sklearn")
    folders = [Path(place) / "datasets" / "data" for place in (spec and spec.submodule_search_locations) or ()]
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def read_digits() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return scikit-learn's digits: images ``(1797, 8, 8)`` float64 from 0 to 16, and labels ``(1797,)`` int64."""
    if table := find_table("digits.csv.gz"):
        rows = np.loadtxt(table, delimiter=",")
        return rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits  # a version that keeps the table elsewhere

    digits = load_digits()
    return digits.images, digits.target.astype(np.int64)


datasets.register("digits")(
    Dataset("1797 handwritten digits, 8x8 grey, 10 classes; comes with scikit-learn", digits)
)
datasets.register("spiral")(
    Dataset(
        "six interleaved spiral arms in the plane, 5000 points each (ProtoNorm, Sec. 3.2)", spiral, SpiralOptions
    )
)
