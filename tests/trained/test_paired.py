"""Intervals over seeds, against tables of Student's t and against repeated sampling."""

from __future__ import annotations

import math

import numpy as np
import pytest

from protofed.trained.paired import Interval, difference, interval


def test_against_a_printed_table_of_t():
    """Five values: t(0.975, 4) = 2.776; the standard deviation of 1 … 5 is √2.5."""
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.776 * math.sqrt(2.5 / 5)
    assert found == pytest.approx((3.0, 3.0 - half, 3.0 + half), abs=1e-3)
    assert found.sign == 1


def test_what_both_sides_share_cancels():
    luck = np.random.default_rng(0).normal(0, 10, 5)
    found = difference([50 + e + 1 for e in luck], [50 + e for e in luck])
    assert found == pytest.approx((1.0, 1.0, 1.0))


def test_it_covers_what_it_promises():
    draws = np.random.default_rng(1).normal(0.3, 2.0, (4000, 3))
    covered = [low <= 0.3 <= high for _, low, high in map(interval, draws.tolist())]
    assert 0.94 < np.mean(covered) < 0.96
    assert 0.88 < np.mean([i.low <= 0.3 <= i.high for i in (interval(d, 0.9) for d in draws.tolist())]) < 0.92


@pytest.mark.parametrize(
    ("values", "sign"), [([1.0], 0), ([0.0, 0.0], 0), ([-1.0, -1.1, -0.9], -1), ([-1.0, 1.0], 0)]
)
def test_signs(values, sign):
    assert interval(values).sign == sign


def test_one_value_says_nothing_about_its_spread():
    assert interval([2.0]) == Interval(2.0, -math.inf, math.inf)


def test_bad_input():
    with pytest.raises(ValueError, match="at least one value"):
        interval([])
    with pytest.raises(ValueError, match="longer"):
        difference([1.0], [1.0, 2.0])
