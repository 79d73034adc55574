"""The rules by which numbers and claims are judged; ``docs/reproduction/README.md`` states them in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from protofed.analysis.paired import Interval, interval

REPRODUCED, CONTRADICTED, UNDECIDED = "reproduced", "contradicted", "undecided"
NOT_RUN, UNTESTABLE = "not run", "not testable here"
AGREES, HIGHER, LOWER, ONE_SEED, FAILED, NO_DATA = "agrees", "higher", "lower", "1 seed", "failed", "no data"
UNREACHED = "unreached"


def number_verdict(printed: str, values: Sequence[float], *, counted: bool = False, bound: bool = False) -> str:
    """Return how values of seeds relate to a printed number.

    Accuracies agree if the 95 % interval over seeds contains the printed mean. Counts, which have no spread, agree
    if they round to the printed number.

    Args:
        printed: The number as printed; empty for a dash, which stands for a failure to converge.
        values: One value per seed.
        counted: Whether values are counts.
        bound: Whether "less than" is printed before the number.

    Example:
        >>> number_verdict("90.0", [89.0, 90.0, 91.5]), number_verdict("0.15", [0.1512], counted=True)
        ('agrees', 'agrees')
    """
    if not values:
        return NOT_RUN
    if not printed:
        return "converges"
    wanted = float(printed)
    if counted:
        mean = sum(values) / len(values)
        if bound:
            return AGREES if mean < wanted else HIGHER
        half = 0.5 * 10.0 ** -len(printed.partition(".")[2])
        # Large numbers are printed with two or three digits.
        half = max(half, 0.005 * abs(wanted) if abs(wanted) >= 1000 else 0.0)
        return AGREES if abs(mean - wanted) <= half else HIGHER if mean > wanted else LOWER
    if len(values) < 2:
        return ONE_SEED
    own = interval(values)
    if own.low <= wanted <= own.high:
        return AGREES
    return HIGHER if own.mean > wanted else LOWER


class Comparison(NamedTuple):
    """One of the comparisons that test a claim.

    Attributes:
        what: What is compared.
        differences: ``a - factor · b - margin`` of each seed, positive on the claimed side.
        every: Whether the claim is about every single run, so that chance plays no part.
    """

    what: str
    differences: tuple[float, ...]
    every: bool = False

    @property
    def interval(self) -> Interval | None:
        """Mean and 95 % interval of the differences; None without any."""
        return interval(self.differences) if self.differences else None

    @property
    def side(self) -> int | None:
        """1 on the claimed side, -1 on the other, 0 undecided; None if fewer than two seeds were run."""
        if self.every and self.differences:
            return 1 if min(self.differences) > 0 else -1
        if len(self.differences) < 2:
            return None
        return interval(self.differences).sign


class Judgement(NamedTuple):
    """The verdict on a claim.

    Attributes:
        verdict: One of the words of this module.
        comparisons: All comparisons, run or not.
        why: Why it cannot be tested, if so.
    """

    verdict: str
    comparisons: tuple[Comparison, ...] = ()
    why: str = ""

    @property
    def tally(self) -> str:
        """How many comparisons lie on either side, of how many."""
        sides = [c.side for c in self.comparisons]
        tested = sum(side is not None for side in sides)
        if not self.comparisons:
            return ""
        parts = [f"{sides.count(1)} for", f"{sides.count(-1)} against", f"{sides.count(0)} undecided"]
        return f"{', '.join(parts)}, of {tested} tested and {len(sides)} claimed"


def judge(comparisons: Sequence[Comparison], need: str = "all") -> Judgement:
    """Return the verdict that comparisons give.

    A claim about several comparisons is reproduced if the intervals of all that were run (or of more than half, for
    a claim about most) lie on the claimed side, contradicted if one of them (or more than half) lies on the other,
    and undecided otherwise. No correction is made for the number of comparisons, which is shown.

    Args:
        comparisons: All comparisons that the claim is about.
        need: ``all`` or ``most``.
    """
    sides = [c.side for c in comparisons if c.side is not None]
    some = any(c.differences for c in comparisons)
    if not sides:
        return Judgement(UNDECIDED if some else NOT_RUN, tuple(comparisons), "one seed" if some else "")
    half = len(sides) / 2
    good = sides.count(1) > half if need == "most" else sides.count(1) == len(sides)
    bad = sides.count(-1) > half if need == "most" else sides.count(-1) > 0
    verdict = REPRODUCED if good else CONTRADICTED if bad else UNDECIDED
    return Judgement(verdict, tuple(comparisons))


def half_width(values: Sequence[float]) -> float | None:
    """Return half of the 95 % interval over seeds; None with fewer than two.

    Args:
        values: One value per seed.
    """
    if len(values) < 2:
        return None
    own = interval(values)
    return own.high - own.mean if math.isfinite(own.high) else None
