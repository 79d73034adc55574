"""Learning curves before joining: accuracy against samples, of a site alone and with a part of the others'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from protofed.methods.fedlda import FedLDAOptions
from protofed.trained.folds import SHARES, Judged, SiteSamples, judge

EXPONENTS = np.linspace(0.1, 1.0, 10)
"""Exponents ``c`` among which the least squares choose."""
FAR = 10.0
"""Multiple of a site's samples beyond which no number is given."""
OFF = 0.03
"""Largest error of a curve through half of the samples, at all of them, with which it is extrapolated."""


class Curves(NamedTuple):
    """Accuracy on a site's samples at each of :data:`SHARES`; NaN without any that are judged.

    Attributes:
        alone: With a share of its own samples.
        together: With all of its own and a share of the others'.
    """

    alone: tuple[float, ...]
    together: tuple[float, ...]


def curves(
    sites: Sequence[SiteSamples], classes: int, options: FedLDAOptions, whole: Judged, chosen: Sequence[int]
) -> list[Curves]:
    """Return the curves of some sites and, as the last one, of their samples together.

    Args:
        whole: The right answers with all samples; of fewer, the first draw of folds tells.
    """
    first = [site._replace(folds=site.folds[:1]) for site in sites]
    found = [*(judge(first, classes, options, share) for share in SHARES[:-1]), whole]
    result = []
    for places in (*([place] for place in chosen), chosen):
        lines = [
            tuple(float(np.mean(np.concatenate([part[p].mean(0) for p in places]))) for part in parts)
            for parts in ([each.alone for each in found], [each.together for each in found])
        ]
        result.append(Curves(*lines))
    return result


def solve_multiple(curve: Curves) -> float:
    """Return the multiple of its samples with which a site is as accurate alone; NaN if its curve does not tell."""
    told = abs(extrapolation_error(SHARES, curve.alone)) <= OFF
    return multiple(curve.alone, curve.together[-1]) if told else float("nan")


def fit_power_law(shares: Sequence[float], values: Sequence[float]) -> tuple[float, float, float]:
    """Return ``a``, ``b``, ``c`` of the power law ``a − b·s^−c`` by least squares, with ``a ≤ 1``, ``b ≥ 0``."""
    s, y = np.asarray(shares), np.asarray(values)
    found = []
    for c in EXPONENTS:
        x = s**-c
        b = max(0.0, -float(np.polyfit(x, y, 1)[0]))
        a = float(np.mean(y + b * x))
        if a > 1:
            a, b = 1.0, max(0.0, float(((1 - y) * x).sum() / (x * x).sum()))
        found.append((float(np.square(a - b * x - y).sum()), a, b, float(c)))
    return min(found)[1:]


def extrapolation_error(shares: Sequence[float], values: Sequence[float]) -> float:
    """Return the error for the last value of the curve through all the others."""
    a, b, c = fit_power_law(shares[:-1], values[:-1])
    return float(a - b * shares[-1] ** -c - values[-1])


def multiple(values: Sequence[float], target: float) -> float:
    """Return the multiple of samples for an accuracy, by the fitted curve; infinite beyond :data:`FAR`."""
    a, b, c = fit_power_law(SHARES, values)
    if a <= target:
        return float("inf")
    times = max(1.0, float((b / (a - target)) ** (1 / c)))
    return times if times <= FAR else float("inf")
