"""Paired differences over seeds: the same splits and initial weights on either side, so that their luck cancels."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """A mean and its confidence interval.

    Attributes:
        mean: The mean.
        low: Lower end; -inf with fewer than two values.
        high: Upper end; inf with fewer than two values.
    """

    mean: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 if the whole interval lies above 0, -1 if below, otherwise 0."""
        return int(self.low > 0) - int(self.high < 0)

    def text(self, digits: int = 1) -> str:
        """Return the mean with its sign and, of more than one value, the interval.

        Args:
            digits: Digits after the point.

        Example:
            >>> Interval(0.75, -0.5, 2.0).text(2)
            '+0.75 (-0.50 … +2.00)'
        """
        numbers = [f"{value:+.{digits}f}" for value in self]
        return numbers[0] if self.high == float("inf") else f"{numbers[0]} ({numbers[1]} … {numbers[2]})"


def interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Return the mean of independent values with Student's t interval.

    Args:
        values: At least one value, e.g. differences between two methods, one per seed.
        level: Coverage, between 0 and 1.

    Raises:
        ValueError: If there is no value.

    Example:
        >>> [round(end, 3) for end in interval([1.0, 2.0, 3.0])]
        [2.0, -0.484, 4.484]
    """
    from scipy.stats import t  # loads in half a second, which other analyses need not wait for

    if not values:
        raise ValueError("an interval needs at least one value")
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Interval(mean, float("-inf"), float("inf"))
    half = float(t.ppf((1 + level) / 2, len(values) - 1)) * statistics.stdev(values) / len(values) ** 0.5
    return Interval(mean, mean - half, mean + half)


def difference(one: Sequence[float], other: Sequence[float], level: float = 0.95) -> Interval:
    """Return the mean of ``one - other`` with its interval.

    Args:
        one: A value per seed.
        other: As many, in the same order of seeds.
        level: Coverage, between 0 and 1.

    Raises:
        ValueError: If their numbers differ, or there is none.
    """
    return interval([a - b for a, b in zip(one, other, strict=True)], level)
