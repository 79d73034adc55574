"""Measures of attacks that tell two groups apart, and the two small models that attacks are fitted with."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

STEPS = 25  #: Newton steps of a logistic regression


def auc(positive: Tensor, negative: Tensor) -> float:
    """Return the area under the ROC curve of ``(m,)`` and ``(n,)`` scores; NaN if a group is empty."""
    if not len(positive) or not len(negative):
        return math.nan
    ordered = negative.double().sort().values
    found = positive.double()
    below = torch.searchsorted(ordered, found, right=False) + torch.searchsorted(ordered, found, right=True)
    return float(below.double().mean() / (2 * len(ordered)))


def auc_error(value: float, positive: int, negative: int) -> float:
    """Return the standard error of an AUC (Hanley and McNeil 1982)."""
    if not positive or not negative:
        return math.nan
    one, two = value / (2 - value), 2 * value**2 / (1 + value)
    spread = value * (1 - value) + (positive - 1) * (one - value**2) + (negative - 1) * (two - value**2)
    return math.sqrt(max(0.0, spread) / (positive * negative))


def caught(positive: Tensor, negative: Tensor, most: float = 0.01) -> float:
    """Return the share of positives that score above all but the share ``most`` of the negatives."""
    if not len(positive) or not len(negative):
        return math.nan
    allowed = int(most * len(negative))
    limit = negative.double().sort(descending=True).values[allowed]
    return float((positive.double() > limit).double().mean())


class Logistic:
    """Logistic regression of ``(n,)`` bool on standardised ``(n, p)`` features, with a small ridge."""

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        x = features.double()
        self.mean, self.scale = x.mean(0), x.std(0, correction=0).clamp(min=1e-12)
        x, y = self._standard(features), labels.double()
        weights = torch.zeros(x.shape[1], dtype=torch.float64)
        ridge = torch.eye(x.shape[1], dtype=torch.float64) * 1e-3 * len(x)
        for _ in range(STEPS):
            p = torch.sigmoid(x @ weights)
            slope = x.mT @ (p - y) + ridge @ weights
            curvature = (x.mT * (p * (1 - p)).clamp(min=1e-6)) @ x + ridge
            weights = weights - torch.linalg.solve(curvature, slope)
        self.weights = weights

    def __call__(self, features: Tensor) -> Tensor:
        """Return the ``(n,)`` scores of ``(n, p)`` features: higher for those that are more likely positive."""
        result: Tensor = self._standard(features) @ self.weights
        return result

    def _standard(self, features: Tensor) -> Tensor:
        return F.pad((features.double() - self.mean) / self.scale, (0, 1), value=1.0)


def similarity(a: Tensor, b: Tensor, window: int = 7) -> Tensor:
    """Return the structural similarity (SSIM; Wang et al. 2004) of images with values in [0, 1].

    Means over a square window stand for the Gaussian one; vectors, and images smaller than the window, are one
    window.

    Args:
        a: ``(n, C, H, W)`` images, or ``(n, D)`` vectors.
        window: Side in pixels.

    Returns:
        ``(n,)`` in [-1, 1], 1 for equal images.
    """
    if a.dim() != 4 or min(a.shape[2:]) < window:
        a, b = (t.flatten(1).unsqueeze(1) for t in (a, b))

        def local(t: Tensor) -> Tensor:
            return t.mean(-1, keepdim=True)
    else:

        def local(t: Tensor) -> Tensor:
            return F.avg_pool2d(t, window, 1)

    a, b = a.double(), b.double()
    mean_a, mean_b = local(a), local(b)
    var_a, var_b = local(a * a) - mean_a**2, local(b * b) - mean_b**2
    covariance = local(a * b) - mean_a * mean_b
    c1, c2 = 0.01**2, 0.03**2
    found = (2 * mean_a * mean_b + c1) * (2 * covariance + c2)
    found = found / ((mean_a**2 + mean_b**2 + c1) * (var_a + var_b + c2))
    return found.flatten(1).mean(1)
