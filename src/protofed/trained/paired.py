"""Paired differences over seeds: the same splits and initial weights on either side, so that their luck cancels."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from protofed.runs.run import Run

BETTER, WORSE, EQUAL, INCONCLUSIVE = "better", "worse", "equal", "inconclusive"
POINT = 1.0  #: Margin within which two accuracies in percent count as equal


class Interval(NamedTuple):
    """A mean and its confidence interval, infinite with fewer than two values."""

    mean: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 if the whole interval lies above 0, -1 if below, otherwise 0."""
        return int(self.low > 0) - int(self.high < 0)

    @property
    def half(self) -> float:
        """Half of its width."""
        return (self.high - self.low) / 2

    def with_half(self, sign: str = " ± ") -> str:
        """Return the mean with the distance of the interval's farther end, if that is finite.

        Example:
            >>> Interval(95.0, 93.5, 96.5).with_half()
            '95.0 ± 1.5'
        """
        mean, most = f"{self.mean:.1f}", max(self.high - self.mean, self.mean - self.low)
        return mean if math.isinf(most) else f"{mean}{sign}{most:.1f}"

    def text(self, digits: int = 1) -> str:
        """Return the mean with its sign and, of more than one value, the interval.

        Example:
            >>> Interval(0.75, -0.5, 2.0).text(2)
            '+0.75 (-0.50 … +2.00)'
        """
        numbers = [f"{value:+.{digits}f}" for value in self]
        return numbers[0] if self.high == float("inf") else f"{numbers[0]} ({numbers[1]} … {numbers[2]})"


def interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Return the mean of independent values with Student's t interval.

    Example:
        >>> [round(end, 3) for end in interval([1.0, 2.0, 3.0])]
        [2.0, -0.484, 4.484]
    """
    if not values:
        raise ValueError("an interval needs at least one value")
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Interval(mean, float("-inf"), float("inf"))
    half = _quantile((1 + level) / 2, len(values) - 1) * _error(values, mean)
    return Interval(mean, mean - half, mean + half)


class Sampled(NamedTuple):
    """A value of one seed over test samples."""

    value: float
    variance: float  #: Over test samples; infinite where it is not known
    centre: float | None = None  #: Of its interval; None for the value

    @classmethod
    def share(cls, share: float, n: float) -> Sampled:
        """Return a share of ``n`` test samples, in percent (Agresti and Coull 1998)."""
        if not n:
            return cls(100 * share, math.inf)
        shrunk = (n * share + 2) / (n + 4)
        return cls(100 * share, 1e4 * shrunk * (1 - shrunk) / (n + 4), 100 * shrunk)

    @classmethod
    def difference(cls, n: float, more: float, apart: float) -> Sampled:
        """Return how many more of ``n`` test samples one of two has right, in percent (Agresti and Min 2005).

        Args:
            more: Hits of the one less those of the other.
            apart: Samples that one has right and the other wrong.
        """
        # Half a sample more of every outcome, or few samples without a difference would leave no doubt.
        centre = more / (n + 2)
        return cls(100 * more / n, 1e4 * ((apart + 1) / (n + 2) - centre**2) / (n + 2), 100 * centre)


def two_level(values: Sequence[Sampled], level: float = 0.95, *, same: bool = False) -> Interval:
    """Return the mean over seeds with an interval over test samples and seeds.

    The variance of the mean is that between seeds, of which there are few, plus that of the test samples of each:
    Student's t interval with Satterthwaite's (1946) degrees of freedom. Test samples of a seed's own count in both,
    so that the interval is rather too wide; with two or three seeds that differ as much as test samples make them,
    it is slightly too narrow.

    Args:
        values: One for each seed, at least one; without a variance, the seeds alone are left.
        same: All seeds have the same test samples, of which more seeds tell no more.

    Example:
        >>> [round(end, 2) for end in two_level([Sampled(1.0, 0.0), Sampled(2.0, 0.0), Sampled(3.0, 0.0)])]
        [2.0, -0.48, 4.48]
        >>> [round(end, 2) for end in two_level([Sampled(1.0, 4.0)])]
        [1.0, -2.92, 4.92]
        >>> [round(end, 2) for end in two_level([Sampled(1.0, 4.0)] * 4, same=True)]
        [1.0, -2.92, 4.92]
    """
    means = [each.value for each in values]
    seeds = interval(means, level)
    within = math.fsum(each.variance for each in values) / len(values) ** (1 if same else 2)
    if math.isinf(within):
        return seeds
    between = _error(means, seeds.mean) ** 2 if len(values) > 1 else 0.0
    total = between + within
    freedom = (len(values) - 1) * (total / between) ** 2 if between else math.inf
    half = _quantile((1 + level) / 2, freedom) * math.sqrt(total)
    centre = statistics.fmean(each.value if each.centre is None else each.centre for each in values)
    if not same:  # the added samples of all seeds together are as few as those of one
        centre = seeds.mean + (centre - seeds.mean) / len(values)
    return Interval(seeds.mean, centre - half, centre + half)


def same_tests(runs: Sequence[Run]) -> bool:
    """Return whether runs of several seeds may have the same test samples, as of a folder that sets them aside.

    They may where it is not known, as over a network.
    """
    return len(runs) > 1 and len({run.federation.tests for run in runs}) == 1


def _error(values: Sequence[float], mean: float) -> float:
    """Return the standard error of a mean (``statistics.stdev`` is a hundred times as slow)."""
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


@cache
def _quantile(share: float, freedom: float) -> float:
    from scipy.special import ndtri, stdtrit  # scipy.stats would load in half a second

    return float(ndtri(share) if math.isinf(freedom) else stdtrit(freedom, share))


def difference(one: Sequence[float], other: Sequence[float], level: float = 0.95) -> Interval:
    """Return the mean of ``one - other``, paired by seed, with its interval."""
    return interval([a - b for a, b in zip(one, other, strict=True)], level)


def agreement(differences: Sequence[float], margin: float = POINT) -> bool | None:
    """Return whether a mean difference lies within ±``margin``; None if that cannot be told.

    Within: two one-sided t tests at 5 % (Schuirmann 1987), so the 90 % interval lies inside. Not within: the 95 %
    interval lies outside.

    Args:
        margin: Largest difference that counts as none.
    """
    inner, outer = interval(differences, 0.9), interval(differences)
    if -margin < inner.low and inner.high < margin:
        return True
    return False if outer.low > margin or outer.high < -margin else None


def relation(differences: Sequence[float], margin: float = POINT) -> str:
    """Return ``better``, ``worse``, ``equal`` (within ±``margin``) or ``inconclusive``.

    Better and worse: the 95 % interval excludes 0, be it within ±``margin`` or not.

    Example:
        >>> relation([0.2, -0.1, 0.1, 0.0]), relation([3.0, 2.0, 2.5]), relation([3.0, -1.0])
        ('equal', 'better', 'inconclusive')
    """
    sign = interval(differences).sign
    if sign:
        return BETTER if sign > 0 else WORSE
    return EQUAL if agreement(differences, margin) else INCONCLUSIVE


def p_value(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of Student's t test of a mean difference of 0; 1 with fewer than two values."""
    from scipy.special import stdtr

    if len(differences) < 2:
        return 1.0
    mean = statistics.fmean(differences)
    error = _error(differences, mean)
    return 2 * float(stdtr(len(differences) - 1, -abs(mean) / error)) if error else float(mean == 0)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number (Holm 1979), in their order.

    Example:
        >>> holm([0.04, 0.01])
        [0.04, 0.02]
    """
    found, least = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        least = found[place] = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
    return found
