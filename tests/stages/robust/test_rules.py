"""The rules against naive versions, and the properties they promise."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from protofed.stages.robust.rules import geometric_median, krum_scores, median, shorten, trim_mean

pytestmark = pytest.mark.fast


def some(n: int, d: int, seed: int) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


sizes = st.tuples(st.integers(1, 9), st.integers(1, 5), st.integers(0, 10_000))


@given(sizes)
def test_median_is_numpys(size):
    x = some(*size)
    np.testing.assert_allclose(median(x), np.median(x.numpy(), axis=0), rtol=1e-12)


@given(sizes, st.integers(0, 4))
def test_trimmed_mean_leaves_out_both_ends(size, trim):
    x = some(*size)
    trim = min(trim, (len(x) - 1) // 2)
    columns = [sorted(column)[trim : len(x) - trim] for column in x.T.tolist()]
    np.testing.assert_allclose(trim_mean(x, trim), [np.mean(c) for c in columns], rtol=1e-9, atol=1e-12)


@given(sizes)
@example((3, 2, 5573))  # begins close to a vector, which a hundred iterations do not leave
@example((4, 2, 1711))
def test_no_point_is_closer_to_all_than_the_geometric_median(size):
    x = some(*size)
    found = geometric_median(x)
    total = (x - found).norm(dim=1).sum()
    for step in (0.1, 0.01):
        for direction in some(8, x.shape[1], 1):
            other = (x - (found + step * direction)).norm(dim=1).sum()
            assert total <= other + 1e-5 * (1 + float(total))


@pytest.mark.parametrize("rule", [median, geometric_median, lambda x: trim_mean(x, 3)])
def test_three_of_seven_cannot_carry_it_away(rule):
    honest = some(4, 3, 0)
    for far in (1e3, 1e6, 1e9):
        found = rule(torch.cat([honest, torch.full((3, 3), far, dtype=torch.float64)]))
        assert float((found - honest.mean(0)).norm()) < 30


def naive_krum(x: torch.Tensor, attackers: int) -> list[float]:
    scores = []
    for i in range(len(x)):
        near = sorted(float((x[i] - x[k]).square().sum()) for k in range(len(x)) if k != i)
        count = max(1, len(x) - attackers - 2)
        scores.append(sum(near[:count]) / count)
    return scores


@given(st.integers(2, 9), st.integers(1, 4), st.integers(0, 3), st.integers(0, 999))
def test_krum_is_the_papers_where_everybody_is_comparable(n, d, attackers, seed):
    x = some(n, d, seed)
    distances = torch.cdist(x, x).square()
    np.testing.assert_allclose(krum_scores(distances, attackers), naive_krum(x, attackers), rtol=1e-6, atol=1e-9)


def test_who_has_nothing_in_common_with_anybody_comes_last():
    distances = torch.tensor([[0.0, 1.0, float("nan")], [1.0, 0.0, float("nan")], [float("nan")] * 3])
    assert krum_scores(distances, 0).tolist() == [1.0, 1.0, float("inf")]


@given(sizes, st.floats(0.01, 10))
def test_shortened_vectors_lie_within_the_radius_and_others_are_untouched(size, radius):
    x = some(*size)
    centre = x.mean(0)
    short, factors = shorten(x, centre, radius)
    before = (x - centre).norm(dim=1)
    assert bool(((short - centre).norm(dim=1) <= radius * (1 + 1e-9)).all())
    assert torch.equal(short[before <= radius], x[before <= radius])
    assert bool((factors[before <= radius] == 1).all())
    torch.testing.assert_close((short - centre).norm(dim=1), before * factors)
