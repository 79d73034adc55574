"""Attacks by clients that see the honest uploads of a round, and agree on one vector for each class or tensor.

They send what harms most and still looks like the others: inside their spread, or as long as a rule lets them be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import NormalDist

import torch
from torch import Tensor

from protofed.methods.contract import Upload
from protofed.stages.robust.vectors import Counts, Part, collect, put_back

Craft = Callable[[Tensor, int, float], Tensor]


def alie(honest: Tensor, hostile: int, scale: float) -> Tensor:
    """Return the mean of ``(n, D)`` vectors less ``z`` standard deviations (Baruch, Baruch and Goldberg, 2019).

    ``z`` is as large as leaves enough honest vectors further out that, with the hostile ones, they are a majority.
    """
    n = len(honest) + hostile
    needed = max(n // 2 + 1 - hostile, 0)
    share = min(max((len(honest) - needed) / len(honest), 0.5), 0.99)
    return honest.mean(0) - scale * NormalDist().inv_cdf(share) * _spread(honest)


def inner_product(honest: Tensor, hostile: int, scale: float) -> Tensor:
    """Return ``-scale`` times the mean, which turns that of all around (Xie, Koyejo and Gupta, 2020)."""
    return -scale * honest.mean(0)


def min_max(honest: Tensor, hostile: int, scale: float) -> Tensor:
    """Return the mean less ``γ`` standard deviations (Shejwalkar and Houmansadr, 2021).

    ``γ`` is the largest for which no honest vector is further away than two of them are from each other.
    """
    mean, spread = honest.mean(0), scale * _spread(honest)
    most = torch.cdist(honest, honest).max()
    low, high = 0.0, 1.0
    while high < 1e6 and (honest - mean + high * spread).norm(dim=1).max() <= most and spread.any():
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        within = bool((honest - mean + middle * spread).norm(dim=1).max() <= most)
        low, high = (middle, high) if within else (low, middle)
    return mean - low * spread


def limit(honest: Tensor, hostile: int, scale: float) -> Tensor:
    """Return the opposite of the mean, ``scale`` times as long as the median vector: what ``clip`` lets through."""
    mean: Tensor = honest.mean(0)
    result: Tensor = -scale * honest.norm(dim=1).median() * mean / mean.norm().clamp(min=1e-12)
    return result


def swap_means(honest: Tensor, hostile: int, scale: float) -> Tensor:
    """Return ``scale`` times the mean; :func:`crafted` passes the vectors of another class."""
    return scale * honest.mean(0)


COLLUDING: dict[str, Craft] = {
    "alie": alie,
    "inner_product": inner_product,
    "min_max": min_max,
    "limit": limit,
    "swapped_means": swap_means,
}


def craft_uploads(
    kind: str,
    uploads: Sequence[Upload],
    hostile: Sequence[str],
    parts: Sequence[Part],
    counts: Counts,
    scale: float,
) -> Mapping[str, Upload]:
    """Return the uploads of hostile clients, by name.

    Args:
        uploads: Of all clients, as honest ones send them.
        parts: Real fields; those whose vectors have no counterparts stay.
    """
    changed = []
    for part in parts:
        if not part.comparable or part.field.minimum is not None:
            continue
        vectors = collect(part, uploads, counts)
        bad = torch.tensor(
            [uploads[sender].client in hostile for sender in vectors.senders.tolist()], dtype=torch.bool
        )
        values = vectors.values.clone()
        places = [rows for _, rows in vectors.by_class()]
        for place, rows in enumerate(places):
            mine = rows[bad[rows]]
            if len(mine):
                source = places[(place + 1) % len(places)] if kind == "swapped_means" else rows
                others = source[~bad[source]]
                known = vectors.values[others if len(others) else mine].double()
                values[mine] = COLLUDING[kind](known, len(mine), scale).to(values.dtype)
        changed.append(vectors.with_values(values))
    return {upload.client: upload for upload in put_back(uploads, changed) if upload.client in hostile}


def _spread(vectors: Tensor) -> Tensor:
    return vectors.std(0, unbiased=False)
