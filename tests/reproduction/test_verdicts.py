"""Intervals and verdicts: against scipy, against simulated seeds with a known difference, and by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from protofed.analysis.paired import difference, interval
from protofed.reproduction.verdicts import Comparison, judge, number_verdict


@pytest.mark.parametrize("n", [2, 3, 5, 20])
@pytest.mark.parametrize("level", [0.5, 0.95, 0.99])
def test_an_interval_is_scipys(n, level):
    values = np.random.default_rng(n).normal(3, 2, n)
    expected = stats.ttest_1samp(values, 0).confidence_interval(level)
    own = interval(values.tolist(), level)
    assert (own.low, own.high) == pytest.approx((expected.low, expected.high), rel=1e-9)
    assert own.mean == pytest.approx(values.mean())


@pytest.mark.parametrize("n", [3, 5])
def test_a_paired_difference_is_scipys(n):
    rng = np.random.default_rng(n)
    one, other = rng.normal(3, 2, n), rng.normal(2, 1, n)
    expected = stats.ttest_rel(one, other).confidence_interval(0.95)
    own = difference(one.tolist(), other.tolist())
    assert (own.low, own.high) == pytest.approx((expected.low, expected.high), rel=1e-9)


@pytest.mark.parametrize("seeds", [3, 5])
def test_of_2000_simulations_95_percent_cover_the_true_difference(seeds):
    """Splits shift both sides alike and much more than the methods differ: pairing has to cancel that."""
    rng, true = np.random.default_rng(seeds), 0.7
    covered = 0
    for _ in range(2000):
        luck = rng.normal(0, 5, seeds)
        one = 80 + luck + true + rng.normal(0, 0.5, seeds)
        other = 80 + luck + rng.normal(0, 0.5, seeds)
        low, high = difference(one.tolist(), other.tolist())[1:]
        covered += low <= true <= high
    assert covered / 2000 == pytest.approx(0.95, abs=0.015)


def test_verdicts_of_simulated_claims_are_wrong_as_rarely_as_the_interval_says():
    """Without a difference 2.5 % of claims are reproduced, 2.5 % contradicted; with a large one all are right."""
    rng = np.random.default_rng(0)

    def shares(true: float) -> dict[str, float]:
        drawn = [judge([Comparison("", tuple(rng.normal(true, 1, 5)))]).verdict for _ in range(2000)]
        return {word: drawn.count(word) / 2000 for word in ("reproduced", "contradicted", "undecided")}

    none = shares(0.0)
    assert none["reproduced"] == pytest.approx(0.025, abs=0.011)
    assert none["contradicted"] == pytest.approx(0.025, abs=0.011)
    assert shares(8.0)["reproduced"] > 0.999
    assert shares(-8.0)["contradicted"] > 0.999


GOOD, BAD, OPEN, SINGLE, NONE = (1.0, 1.1, 0.9), (-1.0, -1.1, -0.9), (1.0, -1.0, 0.1), (1.0,), ()


@pytest.mark.parametrize(
    ("differences", "need", "expected"),
    [
        ([GOOD, GOOD], "all", "reproduced"),
        ([GOOD, OPEN], "all", "undecided"),
        ([GOOD, BAD], "all", "contradicted"),
        ([GOOD, GOOD, BAD], "most", "reproduced"),
        ([GOOD, BAD], "most", "undecided"),
        ([BAD, BAD, GOOD], "most", "contradicted"),
        ([GOOD, NONE], "all", "reproduced"),
        ([SINGLE], "all", "undecided"),
        ([NONE, NONE], "all", "not run"),
        ([], "all", "not run"),
        ([(0.0, 0.0, 0.0)], "all", "undecided"),
    ],
)
def test_the_verdict_on_several_comparisons(differences, need, expected):
    assert judge([Comparison("", d) for d in differences], need).verdict == expected


def test_the_tally_tells_what_was_not_run():
    tally = judge([Comparison("", d) for d in (GOOD, BAD, OPEN, NONE)]).tally
    assert tally == "1 for, 1 against, 1 undecided, of 3 tested and 4 claimed"


@pytest.mark.parametrize(
    ("printed", "values", "counted", "expected"),
    [
        ("90.0", [89.0, 90.0, 91.5], False, "agrees"),
        ("90.0", [91.0, 91.1, 91.2], False, "higher"),
        ("90.0", [88.0, 88.1, 88.2], False, "lower"),
        ("90.0", [90.0], False, "1 seed"),
        ("90.0", [], False, "not run"),
        ("", [80.0, 81.0], False, "converges"),
        ("0.15", [0.1512], True, "agrees"),
        ("0.15", [0.156], True, "higher"),
        ("4", [4.4], True, "agrees"),
        ("4", [3.4], True, "lower"),
        ("235000", [235412.0], True, "agrees"),
        ("235000", [231000.0], True, "lower"),
    ],
)
def test_the_verdict_on_a_number(printed, values, counted, expected):
    assert number_verdict(printed, values, counted=counted) == expected


@pytest.mark.parametrize(("value", "expected"), [(0.003, "agrees"), (0.01, "higher"), (0.02, "higher")])
def test_the_verdict_on_less_than_a_number(value, expected):
    assert number_verdict("0.01", [value], counted=True, bound=True) == expected
