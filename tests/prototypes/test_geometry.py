from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protofed.errors import ConfigError
from protofed.prototypes.geometry import (
    margins,
    normalise_margins,
    pairwise_cosines,
    pairwise_distances,
    summary,
    unit_vectors,
)

pytestmark = pytest.mark.fast


def rows(K: int, d: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(K, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_distances_and_cosines_equal_the_loop():
    p = rows(5, 3)
    for j in range(5):
        for k in range(5):
            assert pairwise_distances(p)[j, k] == pytest.approx(math.dist(p[j], p[k]), abs=1e-12)
            cosine = float(p[j] @ p[k] / (p[j].norm() * p[k].norm()))
            assert pairwise_cosines(p)[j, k] == pytest.approx(cosine, abs=1e-12)


def test_distances_keep_their_digits_far_from_the_origin():
    p = torch.tensor([[1000.0, 1000.0], [1000.0, 1000.001]])
    exact = float(p[1, 1].double() - p[0, 1].double())
    assert pairwise_distances(p)[0, 1] == pytest.approx(exact, rel=1e-6)


def test_distance_of_equal_rows_has_a_finite_gradient():
    p = torch.ones(2, 3, requires_grad=True)
    pairwise_distances(p).sum().backward()
    assert p.grad is not None
    assert p.grad.eq(0).all()


def test_margins_are_to_the_nearest_present_class():
    p = torch.tensor([[0.0, 0.0], [1.0, 0.0], [5.0, 0.0], [torch.nan, 0.0]])
    present = torch.tensor([True, True, True, False])
    assert margins(p, present).tolist() == [1.0, 1.0, 4.0, 0.0]
    assert normalise_margins(p, present).tolist() == [0.25, 0.25, 1.0, 0.0]
    assert margins(p[:3]).tolist() == [1.0, 1.0, 4.0]


def test_summary_of_a_simplex():
    # Three points 120° apart on a circle of radius 2: all distances 2√3.
    angles = torch.tensor([0.0, 2.0, 4.0], dtype=torch.float64) * math.pi / 3
    found = summary(2 * torch.stack([angles.cos(), angles.sin()], 1))
    for which in ("min", "mean", "max"):
        assert found[f"distance_{which}"] == pytest.approx(2 * math.sqrt(3))
        assert found[f"angle_{which}"] == pytest.approx(120)
    assert found["margin_min"] == pytest.approx(1)
    assert found["norm_mean"] == pytest.approx(2)
    assert found["classes"] == 3


@pytest.mark.parametrize("present", [[False, False, False], [False, True, False]])
def test_nothing_is_nan_without_pairs(present):
    p = torch.tensor([[torch.nan, 0.0], [3.0, 4.0], [torch.inf, 0.0]])
    mask = torch.tensor(present)
    found = summary(p, mask)
    assert all(math.isfinite(value) for value in found.values())
    assert found["classes"] == sum(present)
    assert found["distance_max"] == 0
    assert margins(p, mask).tolist() == normalise_margins(p, mask).tolist() == [0, 0, 0]


@given(st.lists(st.lists(st.sampled_from([-1e30, -1.0, 0.0, 1e-30, 1.0, 2.0]), min_size=2, max_size=2), max_size=6))
def test_summary_is_always_finite(values):
    found = summary(torch.tensor(values, dtype=torch.float64).reshape(-1, 2))
    assert all(math.isfinite(value) for value in found.values())


def test_unit_vectors_survive_extreme_lengths():
    p = torch.tensor([[3e-30, 4e-30], [3e30, 4e30], [0.0, 0.0]])
    torch.testing.assert_close(unit_vectors(p), torch.tensor([[0.6, 0.8], [0.6, 0.8], [0.0, 0.0]]))


def test_summary_names_what_is_wrong():
    with pytest.raises(ConfigError, match="1 of 2 rows hold NaN"):
        summary(torch.tensor([[1.0, torch.nan], [0.0, 1.0]]))
    with pytest.raises(ConfigError, match="floating-point matrix"):
        summary(torch.zeros(3, 2, dtype=torch.int64))
