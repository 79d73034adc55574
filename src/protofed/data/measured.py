"""Data sets that are no images: scikit-learn's breast cancer table, and series of motion sensors."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from protofed.compute.seeding import generator
from protofed.data.options import DataOptions
from protofed.data.pool import Dataset, Listing, Pool, datasets
from protofed.data.tables import RawColumn
from protofed.data.toys import find_table
from protofed.options import NoOptions, Options, option

ACTIVITIES = ("resting", "walking", "running", "stairs")


def breast_cancer(data: DataOptions, options: NoOptions, seed: int) -> Listing:
    """Return scikit-learn's breast cancer table: 569 cell samples with 30 measurements, benign or malignant."""
    names, x, y, classes = read_breast_cancer()
    raw = torch.from_numpy(x)
    columns = tuple(RawColumn(name) for name in names)
    return Listing(y, lambda rows: raw[rows], "breast_cancer", classes, columns=columns)


def read_breast_cancer() -> tuple[list[str], np.ndarray[Any, Any], np.ndarray[Any, Any], tuple[str, ...]]:
    """Return the columns' names, ``(569, 30)`` float64 values, ``(569,)`` int64 labels and the class names."""
    if table := find_table("breast_cancer.csv"):
        with table.open(newline="", encoding="utf-8") as file:
            (_, _, *classes), *rows = csv.reader(file)
        values = np.array(rows, dtype=np.float64)
        return list(_MEASUREMENTS), values[:, :-1], values[:, -1].astype(np.int64), tuple(classes)
    from sklearn.datasets import load_breast_cancer  # a version that keeps the table elsewhere

    found = load_breast_cancer()
    return list(found.feature_names), found.data, found.target.astype(np.int64), tuple(map(str, found.target_names))


_KINDS = (
    *("radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points"),
    *("symmetry", "fractal dimension"),
)
_MEASUREMENTS = (
    *(f"mean {kind}" for kind in _KINDS),
    *(f"{kind} error" for kind in _KINDS),
    *(f"worst {kind}" for kind in _KINDS),
)


@dataclass(frozen=True)
class MotionOptions(Options):
    """The generated series of motion sensors."""

    people: int = option(
        24, "people who wear a sensor; each has a pace, a strength and a tilt of the sensor", least=1
    )
    series: int = option(40, "series per person, the activities in turn", least=1)
    steps: int = option(64, "steps of a series, 20 per second", least=8)
    noise: float = option(0.15, "standard deviation of the noise, in units of gravity", least=0)


def motion(data: DataOptions, options: MotionOptions, seed: int) -> Pool:
    """Return generated accelerometer series: x ``(people * series, 3, steps)`` float32, natural ids = people.

    Every activity is a periodic movement with two harmonics along the body's axes, on top of gravity, with a
    frequency and strength of its own; a person scales both and wears the sensor at an angle. Nothing is measured.
    """
    source = generator(seed, "motion")

    def uniform(low: float, high: float, *shape: int) -> torch.Tensor:
        return low + (high - low) * torch.rand(*shape, generator=source, dtype=torch.float64)

    P, S, T = options.people, options.series, options.steps
    y = torch.arange(S).remainder(len(ACTIVITIES)).expand(P, S)
    frequency = torch.tensor([0.2, 1.8, 2.8, 1.5], dtype=torch.float64)[y] * uniform(0.85, 1.15, P, 1)
    strength = torch.tensor([0.03, 0.35, 1.0, 0.35], dtype=torch.float64)[y] * uniform(0.7, 1.4, P, 1)
    # Shares of the two harmonics along the forward, sideways and vertical axes; stairs lift more than walking.
    shares = torch.tensor(
        [[[0.5, 0.3, 0.5], [0.1, 0.1, 0.1]], [[0.6, 0.5, 0.8], [0.3, 0.2, 0.3]], [[0.6, 0.4, 1.0], [0.3, 0.2, 0.5]],
         [[0.5, 0.7, 0.9], [0.6, 0.1, 0.9]]], dtype=torch.float64,
    )[y]  # fmt: skip
    time = torch.arange(T, dtype=torch.float64) / 20
    phase = uniform(0, 2 * math.pi, P, S, 2, 3, 1)
    harmonics = torch.tensor([1.0, 2.0], dtype=torch.float64)[:, None, None]
    angle = 2 * math.pi * frequency[..., None, None, None] * harmonics * time + phase
    body = strength[..., None, None] * (shares[..., None] * angle.sin()).sum(2)
    body[:, :, 2] += 1  # gravity
    tilt = uniform(-0.6, 0.6, P)
    turn = torch.eye(3, dtype=torch.float64).repeat(P, 1, 1)
    turn[:, 0, 0], turn[:, 0, 2], turn[:, 2, 0], turn[:, 2, 2] = tilt.cos(), -tilt.sin(), tilt.sin(), tilt.cos()
    worn = torch.einsum("pij,psjt->psit", turn, body)
    x = worn + options.noise * torch.randn(worn.shape, generator=source, dtype=torch.float64)
    ids = torch.arange(P).repeat_interleave(S)
    return Pool(x.flatten(0, 1).float(), y.flatten(), ACTIVITIES, ids)


datasets.register("breast_cancer")(
    Dataset("569 cell samples, 30 measurements, 2 classes: a table that comes with scikit-learn", breast_cancer)
)
datasets.register("motion")(
    Dataset(
        "generated accelerometer series, 3 channels, 4 activities, with people as natural ids",
        motion,
        MotionOptions,
    )
)
