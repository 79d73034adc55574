"""Intervals, tests and verdicts: against scipy, against simulated seeds with a known difference, and by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from conftest import REPOSITORY
from protofed.trained.paired import agreement, difference, holm, interval, p_value, relation
from protofed_papers.papers import papers
from protofed_papers.verdicts import Contrast, judge, number_verdict
from support import few, script

RATES = script(REPOSITORY / "papers/tools/verdict_rates.py")


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


@few("n", [2, 3, 5], 1)
@given(seed=st.integers(0, 2**32 - 1), margin=st.floats(0.1, 4))
def test_agreement_and_p_values_are_scipys(n, seed, margin):
    """Two one-sided tests, each at 5 %."""
    values = np.random.default_rng(seed).normal(0.5, 1, n)
    low = stats.ttest_1samp(values, -margin, alternative="greater").pvalue
    high = stats.ttest_1samp(values, margin, alternative="less").pvalue
    assert (agreement(values.tolist(), margin) is True) == (max(low, high) < 0.05)
    assert p_value(values.tolist()) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, rel=1e-9)
    sign = stats.ttest_1samp(values, 0).pvalue < 0.05 and np.sign(values.mean())
    expected = {1: "better", -1: "worse"}.get(int(sign), "equal" if max(low, high) < 0.05 else "inconclusive")
    assert relation(values.tolist(), margin) == expected


@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_holm_rejects_as_its_definition_says(p):
    """Step down: the smallest at α/m, the next at α/(m − 1), until one is not rejected."""
    for level in (0.01, 0.05, 0.2):
        rejected = set()
        for rank, value in enumerate(sorted(p)):
            if value * (len(p) - rank) > level:
                break
            rejected.add(value)
        assert {v for v, adjusted in zip(p, holm(p), strict=True) if adjusted <= level} == rejected


@pytest.mark.parametrize("differences", [[0.5], [0.0, 0.0, 0.0], [1.0, 1.0], [-3.0, -3.0, -3.0]])
def test_degenerate_differences(differences):
    expected = {0.5: "inconclusive", 0.0: "equal", 1.0: "better", -3.0: "worse"}[differences[0]]
    assert relation(differences) == expected
    assert p_value(differences) == {0.5: 1.0, 0.0: 1.0, 1.0: 0.0, -3.0: 0.0}[differences[0]]


@pytest.mark.parametrize("seeds", [3, 5])
def test_of_2000_contrasts_over_cells_95_percent_of_intervals_cover(seeds):
    assert RATES.coverage(seeds) == pytest.approx(0.95, abs=0.015)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("leads", [[0.0], [0.0] * 4, [0.5, 1.0, 2.0, 4.0]])
def test_of_2000_claims_that_are_not_false_at_most_5_percent_are_contradicted(seeds, leads):
    verdicts = RATES.claims(seeds, leads)
    assert verdicts.count("contradicted") / 2000 <= 0.05
    assert verdicts.count("reproduced") / 2000 <= (0.05 if not any(leads) else 1)


@pytest.mark.parametrize("seeds", [3, 5])
def test_of_2000_numbers_at_the_margin_at_most_5_percent_are_told_apart(seeds):
    verdicts = RATES.numbers(seeds, 1.0, spread=0.2)
    assert verdicts.count("within") / 2000 <= 0.065  # 5 % and three standard errors
    assert verdicts.count("outside") / 2000 <= 0.065


@pytest.mark.slow
def test_the_page_holds_the_simulated_rates():
    page = (REPOSITORY / "papers/reproduction/README.md").read_text()
    assert "\n".join(RATES.lines()) in page


GOOD, BAD, OPEN, SINGLE, NONE = (1.0, 1.1, 0.9), (-1.0, -1.1, -0.9), (1.0, -1.0, 0.1), (1.0,), ()
SAME, WORSE = (0.1, -0.1, 0.0), (-1.0, -1.4, -0.6)


def contrast(*cells, **options) -> Contrast:
    return Contrast("", [dict(enumerate(cell)) for cell in cells], **options)


def test_a_verdict_says_on_which_part_of_the_cells_it_rests():
    some, all_cells = contrast(GOOD, GOOD, NONE), contrast(GOOD, GOOD, GOOD)
    assert judge([all_cells]).part == ""
    assert judge([all_cells, some]).part == "2 of 3 cells"
    assert judge([]).part == ""


def test_parameters_are_counted_as_in_the_papers_own_tables():
    """GFPL's claim was judged in both directions, FedProto's by uploads, though both papers count uploads."""
    found = papers()
    counted = {"fedproto": "up", "gfpl": "up_mean", "tinyproto": "both", "protonorm": "both"}
    assert {name: paper.traffic for name, paper in found.items()} == counted
    claims = [claim for paper in found.values() for claim in paper.claims if " parameters" in claim.text]
    assert {claim.metric for claim in claims} == {"accuracy", "traffic"}


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        ([GOOD, GOOD], "reproduced"),
        ([GOOD, OPEN], "inconclusive"),
        ([GOOD, BAD], "contradicted"),
        ([WORSE], "contradicted"),  # p = 0.013,
        ([WORSE, GOOD, GOOD, GOOD], "inconclusive"),  # which four comparisons make 0.053
        ([GOOD, SAME], "equal"),
        ([SAME, SAME], "equal"),
        ([SAME, OPEN], "inconclusive"),
        ([GOOD, NONE], "inconclusive"),  # each has to be on the claimed side
        ([BAD, NONE], "contradicted"),
        ([SINGLE], "inconclusive"),
        ([NONE, NONE], "not run"),
        ([], "not run"),
    ],
)
def test_the_verdict_on_several_comparisons(differences, expected):
    assert judge([contrast(d) for d in differences]).verdict == expected


def test_cells_do_not_depend_on_their_order():
    """Two cells with other seeds than the third: of sets as large, that of more cells counts."""
    cells = [{0: -1.0, 1: -1.2}, {1: 1.0, 2: 1.2}, {1: 2.0, 2: 2.2}]
    for order in itertools.permutations(cells):
        assert sorted(Contrast("", order).differences) == [1.5, pytest.approx(1.7)]


def test_cells_are_pooled_within_a_seed():
    """Cells that a seed lacks are left out for all seeds, since the others would be of other cells."""
    own = contrast((3.0, 1.0, -1.0), (-1.0, 1.0, 3.0), (9.0,), ())
    assert own.differences == [1.0, 1.0, 1.0]
    assert own.text == ": +1.00 (+1.00 … +1.00), 2 of 4 cells"
    assert judge([own]).verdict == "reproduced"


def test_other_kinds_of_claims():
    assert judge([contrast((1.0, 2.0), (0.1,), kind="every")]).verdict == "reproduced"
    assert judge([contrast((1.0, 2.0), (-0.1,), kind="every")]).verdict == "contradicted"
    assert judge([contrast((0.5, 0.6, 0.4), kind="alike")]).verdict == "reproduced"
    assert judge([contrast((2.5, 2.6, 2.4), kind="alike")]).verdict == "contradicted"
    assert judge([contrast((1.0, 1.1, 0.9), kind="alike")]).verdict == "inconclusive"
    assert judge([contrast(SAME, margin=0.0)]).verdict == "inconclusive"  # of a margin: nothing is equal


def test_the_tally_tells_the_weakest_and_who_is_ahead():
    rivals = {"x": GOOD, "y": (-9.0, -9.1, -9.2), "z": (-5.0, -5.1, -5.2), "w": NONE}
    tally = judge([Contrast(name, [dict(enumerate(d))]) for name, d in rivals.items()]).tally
    assert tally == "y: -9.10 (-9.35 … -8.85) (least of 3; 1 not run; on the other side: y, z)"


@pytest.mark.parametrize(
    ("printed", "values", "counted", "expected"),
    [
        ("90.0", [89.9, 90.0, 90.2], False, "within"),
        ("90.0", [89.0, 90.0, 91.5], False, "open"),
        ("90.0", [90.8, 91.1, 91.3], False, "open"),
        ("90.0", [92.0, 92.1, 92.2], False, "outside"),
        ("90.0", [88.0, 88.1, 88.2], False, "outside"),
        ("90.0", [90.0], False, "open"),
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
