"""Data sets that need no files: scikit-learn's digits and breast cancer table, and generated ones."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from protofed.compute.seeding import derive, generator
from protofed.data.arrow import from_arrow
from protofed.data.options import Columns, DataOptions
from protofed.data.pool import Dataset, Listing, Pool, datasets
from protofed.data.tables import RawColumn
from protofed.options import NoOptions, Options, option


@dataclass(frozen=True)
class SpiralOptions(Options):
    """Shape of the spiral (ProtoNorm, Sec. 3.2 and supplement A)."""

    arms: int = option(6, "number of arms = classes", least=1)
    points: int = option(5000, "points per class", least=1)
    noise: float = option(0.2, "standard deviation of the angle in radians (supplement A prints 1)", least=0)
    winding: Literal["equal", "printed"] = option(
        "equal", "equal: all arms wind alike | printed: arm k winds k/6 turns, as supplement A prints"
    )


def spiral(data: DataOptions, options: SpiralOptions, seed: int) -> Pool:
    """Return interleaved spiral arms in the plane with radii from 1 to 10: x ``(arms * points, 2)`` float32.

    The supplement's noise of one radian is wider than the gap between two arms, and its arm 0 does not wind at all.
    By default the noise is smaller and all arms wind half a turn, as in the paper's figure of separable arms.
    """
    along = torch.linspace(0, 1, options.points, dtype=torch.float64)
    arm = torch.arange(options.arms, dtype=torch.float64)[:, None]
    turns = arm / 6 if options.winding == "printed" else torch.full_like(arm, 0.5)
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


ACTIVITIES = ("resting", "walking", "running", "stairs")
STEPS, NOISE = 64, 0.15
"""Steps of a series of motion, 20 per second, and the standard deviation of its noise, in units of gravity."""


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


def motion(data: DataOptions, options: MotionOptions, seed: int) -> Pool:
    """Return generated accelerometer series: x ``(people * series, 3, steps)`` float32, natural ids = people.

    Every activity is a periodic movement with two harmonics along the body's axes, on top of gravity, with a
    frequency and strength of its own; a person scales both and wears the sensor at an angle. Nothing is measured.
    """
    source = generator(seed, "motion")

    def uniform(low: float, high: float, *shape: int) -> torch.Tensor:
        return low + (high - low) * torch.rand(*shape, generator=source, dtype=torch.float64)

    P, S, T = options.people, options.series, STEPS
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
    x = worn + NOISE * torch.randn(worn.shape, generator=source, dtype=torch.float64)
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


TOPICS = {
    "cooking": "boil bread butter dough flour garlic knife onion oven pan pepper recipe roast salt soup stir",
    "football": "ball coach corner defender fans foul goal keeper kick match midfield penalty pitch referee win",
    "garden": "bloom bulb compost fence hedge lawn mulch pear prune rake rose seed shed soil tulip weed",
    "music": "bass bow chord choir concert drum flute guitar harmony melody note piano rhythm song tune violin",
    "travel": "airport beach border bus coast hotel island journey luggage map museum passport ticket tour visa",
    "weather": "breeze cloud cold drizzle fog forecast frost hail humid rain snow storm sun thunder warm wind",
}
"""Words of each topic."""
OTHERS = """
a about after again all and any at before but by day few first for from good had he her here if in it last later
less long many more most much near never new not now of often old on one or our out over same she so some soon that
the then there they this time to today too two under until very was we week well were with without year you
"""
"""Words of any text."""
LONGEST = 24  #: Words of a note, at most; at least half as many


@dataclass(frozen=True)
class NotesOptions(Options):
    """The generated notes."""

    people: int = option(12, "authors; each knows half of every topic's words, and prefers some topics", least=1)
    notes: int = option(40, "notes per author", least=1)
    share: float = option(0.25, "probability that a word is one of the topic", least=0, most=1)


def notes(data: DataOptions, options: NotesOptions, seed: int) -> Listing:
    """Return generated notes in a column ``note``, with the topic as label."""
    import pyarrow as pa

    draw = np.random.default_rng(derive(seed, "notes"))
    others, topics = OTHERS.split(), list(TOPICS)
    texts, labels, authors = [], [], []
    for author in range(options.people):
        known = [draw.permutation(words.split())[: len(words.split()) // 2] for words in TOPICS.values()]
        shares = draw.dirichlet(np.ones(len(topics)))
        for label in draw.choice(len(topics), options.notes, p=shares):
            length = draw.integers(LONGEST // 2, LONGEST + 1)
            words = np.where(
                draw.random(length) < options.share, draw.choice(known[label], length), draw.choice(others, length)
            )
            texts.append(" ".join(words))
            labels.append(topics[label])
            authors.append(f"author{author:02d}")
    table = pa.table({"note": texts, "topic": labels, "author": authors})
    asked = Columns.of(replace(data, label_column="topic", text=("note",)), "author")
    return from_arrow(table, asked, "notes", data.budget())


datasets.register("notes")(
    Dataset(
        "generated texts of six topics, with authors as natural ids: a column of free text (data.text_as)",
        notes,
        NotesOptions,
    )
)
