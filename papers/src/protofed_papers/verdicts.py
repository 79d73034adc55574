"""The rules by which numbers and claims are judged; ``papers/reproduction/README.md`` states them in words."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from protofed.trained.paired import EQUAL, POINT, Interval, agreement, holm, interval, p_value, relation

REPRODUCED, CONTRADICTED, INCONCLUSIVE = "reproduced", "contradicted", "inconclusive"
NOT_RUN, UNTESTABLE = "not run", "not testable here"
WITHIN, OUTSIDE, OPEN = "within", "outside", "open"
AGREES, HIGHER, LOWER, FAILED, NO_DATA, UNREACHED = "agrees", "higher", "lower", "failed", "no data", "unreached"
RISK = 0.05  #: Largest probability with which a claim is contradicted by chance


def number_verdict(
    printed: str, values: Sequence[float], *, counted: bool = False, bound: bool = False, margin: float = POINT
) -> str:
    """Return the relation of values, one per seed, to a printed number.

    Counts, which have no spread, agree if they round to the printed number; others are judged by
    :func:`~protofed.trained.paired.agreement`.

    Args:
        printed: Empty for a dash, which stands for a failure to converge.
        bound: "Less than" is printed before the number.
        margin: Largest negligible difference.

    Example:
        >>> number_verdict("90.0", [89.9, 90.2, 90.1]), number_verdict("0.15", [0.1512], counted=True)
        ('within', 'agrees')
    """
    if not values:
        return NOT_RUN
    if not printed:
        return "converges"
    wanted = float(printed)
    if not counted:
        return {True: WITHIN, False: OUTSIDE, None: OPEN}[agreement([value - wanted for value in values], margin)]
    mean = statistics.fmean(values)
    if bound:
        return AGREES if mean < wanted else HIGHER
    half = 0.5 * 10.0 ** -len(printed.partition(".")[2])
    # Large numbers are printed with two or three digits.
    half = max(half, 0.005 * abs(wanted) if abs(wanted) >= 1000 else 0.0)
    return AGREES if abs(mean - wanted) <= half else HIGHER if mean > wanted else LOWER


@dataclass(frozen=True)
class Contrast:
    """One of the comparisons that test a claim: a contrast over all of the claim's cells."""

    what: str
    #: ``a - factor · b - margin`` by seed for every cell, positive on the claimed side; empty if not run
    cells: Sequence[Mapping[int, float]]
    #: ``order``; ``alike``, for a claim that both are equal; ``every``, for one about every single run
    kind: str = "order"
    margin: float = POINT  #: Largest negligible difference; 0 where only the order is claimed

    @cached_property
    def counted(self) -> list[Mapping[int, float]]:
        """Cells run with all seeds of the cell with the most; of several such sets of seeds, that of more cells."""
        sets = sorted({frozenset(cell) for cell in self.cells}, key=sorted)
        seeds = max(sets, key=lambda own: (len(own), sum(own <= set(c) for c in self.cells)), default=frozenset())
        return [cell for cell in self.cells if seeds and seeds <= set(cell)]

    @cached_property
    def differences(self) -> list[float]:
        """One value per seed, the mean over the counted cells."""
        cells = self.counted
        seeds = sorted(set.intersection(*map(set, cells))) if cells else []
        return [statistics.fmean(cell[seed] for cell in cells) for seed in seeds]

    @property
    def interval(self) -> Interval | None:
        """Mean and 95 % interval of the differences; None without any."""
        return interval(self.differences) if self.differences else None

    @cached_property
    def side(self) -> int | None:
        """1 on the claimed side, -1 on the other, 0 if that cannot be told; None if not run."""
        if not self.differences:
            return None
        if self.kind == "every":
            return 1 if min(value for cell in self.cells for value in cell.values()) > 0 else -1
        if self.kind == "alike":
            return {True: 1, False: -1, None: 0}[agreement(self.differences, self.margin)]
        return interval(self.differences).sign

    @property
    def equal(self) -> bool:
        """Return whether it is no claim of equality, and both sides are equal."""
        return self.kind == "order" and bool(self.differences) and relation(self.differences, self.margin) == EQUAL

    @property
    def chance(self) -> float:
        """P-value of a difference on the other side; 1 if it lies on the claimed one."""
        if self.kind != "order":
            return float(self.side != -1)
        return p_value(self.differences) if self.differences and statistics.fmean(self.differences) < 0 else 1.0

    @property
    def text(self) -> str:
        """The comparison in words, with its interval and the number of cells."""
        if (found := self.interval) is None:
            return f"{self.what}: {NOT_RUN}"
        cells = f", {len(self.counted)} of {len(self.cells)} cells" if len(self.cells) > 1 else ""
        return f"{self.what}: {found.text(2)}{cells}"


class Judgement(NamedTuple):
    """The verdict on a claim."""

    verdict: str  #: One of the words of this module, or ``equal``
    comparisons: tuple[Contrast, ...] = ()
    why: str = ""  #: Where the comparisons do not tell

    @property
    def part(self) -> str:
        """The share of cells that were run, as ``12 of 36 cells``, of the contrast with the lowest; "" if all."""
        counts = [(len(c.counted), len(c.cells)) for c in self.comparisons]
        some, cells = min(counts, key=lambda own: own[0] / own[1] if own[1] else 1.0, default=(0, 0))
        return f"{some} of {cells} cells" if some < cells else ""

    @property
    def tally(self) -> str:
        """The comparison with the lowest difference, of how many, and those on the other side by Holm's method."""
        tested = [c for c in self.comparisons if c.differences]
        if not tested:
            return ""
        least = min(tested, key=lambda c: statistics.fmean(c.differences))
        lost = [c.what for c, p in zip(tested, holm([c.chance for c in tested]), strict=True) if p <= RISK]
        parts = [f"least of {len(tested)}"] if len(tested) > 1 else []
        parts += [f"{len(self.comparisons) - len(tested)} not run"] if len(tested) < len(self.comparisons) else []
        parts += [f"on the other side: {', '.join(lost)}"] if lost and lost != [least.what] else []
        aside = f" ({'; '.join(parts)})" if parts else ""
        return f"{least.text}{aside}"


def judge(comparisons: Sequence[Contrast]) -> Judgement:
    """Return the verdict that comparisons give.

    A claim is reproduced if all lie on the claimed side (no correction: each has to), contradicted if one lies on
    the other by a t test that Holm's method corrects for the number of those that were run, and equal if each lies
    on the claimed side or is equal.
    """
    tested = [c for c in comparisons if c.side is not None]
    if not tested:
        return Judgement(NOT_RUN, tuple(comparisons))
    complete = len(tested) == len(comparisons)
    if complete and all(c.side == 1 for c in tested):
        verdict = REPRODUCED
    elif min(holm([c.chance for c in tested])) <= RISK:
        verdict = CONTRADICTED
    else:
        verdict = EQUAL if complete and all(c.side == 1 or c.equal for c in tested) else INCONCLUSIVE
    return Judgement(verdict, tuple(comparisons))
