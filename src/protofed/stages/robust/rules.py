"""Robust statistics of corresponding vectors of several clients, as pure functions of ``(n, D)`` tensors.

Yin et al., "Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates", ICML 2018 (median, trimmed
mean); Pillutla et al., "Robust Aggregation for Federated Learning", IEEE TSP 2022 (geometric median); Blanchard et
al., "Machine Learning with Adversaries: Byzantine Tolerant Gradient Descent", NeurIPS 2017 (Krum).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def median(vectors: Tensor) -> Tensor:
    """Return the coordinate-wise median ``(D,)``; for even ``n``, the mean of the two middle values.

    It stays within the range of the honest values as long as fewer than half of the vectors are hostile.
    """
    n = len(vectors)
    middle = (n - 1) // 2, n // 2
    # A partition of the rows of a contiguous array takes a tenth of the time of a sort of columns.
    rows = torch.from_numpy(np.partition(vectors.t().contiguous().cpu().numpy(), middle, axis=1))
    return ((rows[:, middle[0]] + rows[:, middle[1]]) / 2).to(vectors.device)


def trim_mean(vectors: Tensor, trim: int) -> Tensor:
    """Return the coordinate-wise mean ``(D,)`` of ``(n, D)`` without the ``trim`` smallest and largest values.

    Args:
        trim: Values to leave out at either end, at most ``(n - 1) // 2``, which gives the median.
    """
    trim = min(trim, (len(vectors) - 1) // 2)
    return vectors.sort(dim=0).values[trim : len(vectors) - trim].mean(dim=0)


def geometric_median(vectors: Tensor) -> Tensor:
    """Return the point ``(D,)`` with the smallest sum of distances to all vectors (smoothed Weiszfeld algorithm).

    Its breakdown point is one half. The iteration starts from the coordinate-wise median. Distances are clamped
    from below to a millionth of the median distance, so that the point may coincide with a vector.
    """
    point = median(vectors.double())
    rows = vectors.double()
    scale = (rows - point).norm(dim=1).median()
    if not scale > 0:
        return point.to(vectors.dtype)
    for _ in range(1000):  # dozens suffice, but hundreds if the start lies close to a vector
        weights = 1 / (rows - point).norm(dim=1).clamp(min=1e-6 * scale)
        moved = weights @ rows / weights.sum()
        done = (moved - point).norm() <= 1e-9 * scale
        point = moved
        if done:
            break
    return point.to(vectors.dtype)


def krum_scores(distances: Tensor, attackers: int) -> Tensor:
    """Return the score ``(n,)`` of each client: the mean of its smallest squared distances (lower is more central).

    Args:
        distances: ``(n, n)`` squared distances; NaN where two clients have nothing in common.
        attackers: Number ``f``. Of a client's ``m`` known distances, the ``m - f - 1`` smallest count, but at
            least one (in Blanchard et al., all ``n - 1`` are known and ``n - f - 2`` count).
    """
    others = distances.clone()
    others.fill_diagonal_(float("nan"))
    known = (~others.isnan()).sum(dim=1)
    ordered = others.nan_to_num(nan=float("inf")).sort(dim=1).values
    counted = (known - attackers - 1).clamp(min=1)
    near = torch.arange(len(others)).expand_as(ordered) < counted.unsqueeze(1)
    sums = torch.where(near, ordered, torch.zeros_like(ordered)).sum(dim=1)
    return torch.where(known > 0, sums / counted, torch.full_like(sums, float("inf")))


def shorten(vectors: Tensor, centre: Tensor, radius: float) -> tuple[Tensor, Tensor]:
    """Move vectors farther than ``radius`` from ``centre`` towards it, to that distance.

    Returns:
        The vectors ``(n, D)``, and the factor ``(n,)`` of each distance: 1 for unchanged ones.
    """
    offsets = vectors - centre
    lengths = offsets.norm(dim=-1)
    factors = (radius / lengths.clamp(min=torch.finfo(lengths.dtype).tiny)).clamp(max=1.0)
    changed = (factors < 1).unsqueeze(-1)
    return torch.where(changed, centre + factors.unsqueeze(-1) * offsets, vectors), factors
