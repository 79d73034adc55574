from __future__ import annotations

import math
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protofed.prototypes.alignment import align, energy

pytestmark = pytest.mark.fast


def rows(K: int, d: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(K, d, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def reference(prototypes, mu=0.9, eta=0.1, decay=0.95, every=10, most=500, patience=10, decimals=4):
    """ProtoNorm Algorithm 1 with bare loops."""
    u = [p / p.norm() for p in prototypes]
    v = [torch.zeros_like(p) for p in u]
    forces, equal = [], 0
    for t in range(most):
        F = []
        for j in range(len(u)):
            total = torch.zeros_like(u[j])
            for k in range(len(u)):
                if k != j:
                    difference = u[j] - u[k]
                    total = total + difference / difference.square().sum()
            F.append(total)
        for j in range(len(u)):
            v[j] = mu * v[j] + eta * F[j]
            moved = u[j] + v[j]
            u[j] = moved / moved.norm()
        forces.append(sum(float(f.norm()) for f in F) / len(F))
        if t % every == 0:
            eta = eta * decay
        if t > 10:
            equal = equal + 1 if round(forces[t], decimals) == round(forces[t - 1], decimals) else 0
            if equal == patience:
                break
    return torch.stack(u), forces


@pytest.mark.parametrize(("K", "d"), [(2, 3), (5, 3), (6, 16), (9, 2)])
def test_equals_the_loop(K, d):
    p = rows(K, d, seed=K)
    expected, forces = reference(p)
    found = align(p)
    assert found.iterations == len(forces) < 500
    torch.testing.assert_close(found.directions, expected, rtol=0, atol=1e-9)
    torch.testing.assert_close(torch.tensor(found.mean_forces), torch.tensor(forces), rtol=1e-10, atol=0)


def test_equals_the_loop_for_other_options():
    options = {"momentum": 0.5, "lr": 0.03, "decay": 0.8, "decay_every": 3, "max_iterations": 37}
    expected, forces = reference(rows(5, 4), 0.5, 0.03, 0.8, 3, 37, patience=99)
    found = align(rows(5, 4), **options, patience=99)
    assert found.iterations == len(forces) == 37
    torch.testing.assert_close(found.directions, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("K", [3, 4, 7])
def test_points_on_the_circle_end_up_equally_spaced(K):
    u = align(rows(K, 2, seed=1), patience=500).directions
    angles = torch.atan2(u[:, 1], u[:, 0]).sort().values
    gaps = torch.diff(angles, append=angles[:1] + 2 * math.pi)
    torch.testing.assert_close(gaps, torch.full((K,), 2 * math.pi / K, dtype=torch.float64), rtol=0, atol=1e-3)


@pytest.mark.parametrize(("K", "d"), [(3, 2), (4, 3), (5, 16), (10, 512)])
def test_few_points_form_a_simplex(K, d):
    """Up to d + 1 points the optimum is the regular simplex: cosines −1/(K−1), distances √(2K/(K−1))."""
    found = align(rows(K, d), patience=500)
    cosines = found.directions @ found.directions.T
    expected = torch.full((K, K), -1 / (K - 1), dtype=torch.float64).fill_diagonal_(1.0)
    torch.testing.assert_close(cosines, expected, rtol=0, atol=2e-3)
    best = -K * (K - 1) / 2 * math.log(math.sqrt(2 * K / (K - 1)))
    # Nothing lies below the optimum, which the sum of K (K − 1) / 2 logarithms meets up to its own rounding.
    rounding = K * (K - 1) / 2 * 4 * sys.float_info.epsilon * max(1.0, abs(best))
    assert best - rounding <= found.energy < best + 1e-4


def test_energy_equals_the_loop():
    u = torch.nn.functional.normalize(rows(6, 3), dim=1)
    loop = sum(math.log(1 / math.dist(u[j], u[k])) for j in range(6) for k in range(j + 1, 6))
    assert energy(u) == pytest.approx(loop, abs=1e-9)
    assert energy(u[:1]) == 0


def test_energy_falls_and_distances_are_tracked():
    p = rows(12, 6)
    found = align(p, track_distances=True)
    assert len(found.distances) == found.iterations
    assert all(low <= mean <= high for low, mean, high in found.distances)
    assert found.distances[-1][0] > found.distances[0][0]
    assert found.energy < energy(torch.nn.functional.normalize(p, dim=1))
    assert align(p).distances == []


def test_input_is_left_alone_and_dtype_kept():
    p = rows(4, 3, dtype=torch.float32)
    before = p.clone()
    found = align(p.requires_grad_())
    assert torch.equal(p, before)
    assert found.directions.dtype == torch.float32
    assert not found.directions.requires_grad
    assert align(p.half()).directions.dtype == torch.float16


def test_no_iterations_only_normalises():
    found = align(torch.tensor([[3.0, 4.0], [0.0, 2.0]]), max_iterations=0)
    torch.testing.assert_close(found.directions, torch.tensor([[0.6, 0.8], [0.0, 1.0]]))
    assert found.iterations == 0


@pytest.mark.parametrize(
    "prototypes",
    [
        torch.ones(6, 4),
        torch.zeros(6, 4),
        torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]),
        torch.ones(50, 2),
    ],
    ids=["identical", "zero", "opposite and repeated", "many on a circle"],
)
def test_coinciding_prototypes_separate(prototypes):
    found = align(prototypes)
    u = found.directions
    torch.testing.assert_close(u.norm(dim=1), torch.ones(len(u)))
    distances = torch.cdist(u, u).fill_diagonal_(torch.inf)
    assert distances.min() > 1 / len(u)
    assert torch.equal(u, align(prototypes).directions)  # nothing is drawn from global state


@given(
    K=st.integers(1, 12),
    d=st.integers(1, 5),
    seed=st.integers(0, 1000),
    pattern=st.lists(st.sampled_from(["keep", "repeat", "oppose", "zero", "nearly"]), min_size=12, max_size=12),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_degenerate_prototypes_stay_finite(K, d, seed, pattern, dtype):
    p = rows(K, d, seed, dtype)
    for j, change in enumerate(pattern[:K]):
        other = p[seed % K].clone()
        p[j] = {"keep": p[j], "repeat": other, "oppose": -other, "zero": 0 * other, "nearly": other + 1e-7}[change]
    found = align(p, max_iterations=60)
    assert found.directions.isfinite().all()
    assert math.isfinite(found.energy)
    torch.testing.assert_close(found.directions.norm(dim=1), torch.ones(K, dtype=dtype), rtol=0, atol=1e-5)


def test_aligned_within_masks_by_loops():
    """Forces act on the coordinates of each class's support; elsewhere directions stay 0."""
    K, d = 6, 8
    support = torch.rand(K, d, generator=torch.Generator().manual_seed(1)) < 0.5
    support[:, 0] = True
    u = [p / p.norm() for p in rows(K, d) * support]
    v, eta = [torch.zeros(d, dtype=torch.float64) for _ in u], 0.1
    for t in range(25):
        F = []
        for j in range(K):
            total = torch.zeros(d, dtype=torch.float64)
            for k in range(K):
                if k != j:
                    total = total + (u[j] - u[k]) / (u[j] - u[k]).square().sum()
            F.append(total * support[j])
        for j in range(K):
            v[j] = 0.9 * v[j] + eta * F[j]
            u[j] = (u[j] + v[j]) / (u[j] + v[j]).norm()
        if t % 10 == 0:
            eta *= 0.95
    found = align(rows(K, d), support=support, max_iterations=25, patience=99).directions
    torch.testing.assert_close(found, torch.stack(u), rtol=0, atol=1e-9)
    assert not bool(found[~support].any())
    before = align(rows(K, d) * support, max_iterations=0).directions
    assert energy(found) < energy(before)


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 10_000))
def test_masked_directions_stay_unit_and_finite(K, d, seed):
    """Also where rows are 0 within their support, repeat one another, or share a single coordinate."""
    g = torch.Generator().manual_seed(seed)
    support = torch.rand(K, d, generator=g) < 0.4
    support[torch.arange(K), torch.randint(d, (K,), generator=g)] = True
    prototypes = rows(K, d, seed) * (torch.rand(K, 1, generator=g) < 0.7)
    found = align(prototypes, support=support, max_iterations=30).directions
    torch.testing.assert_close(found.norm(dim=1), torch.ones(K, dtype=torch.float64))
    assert not bool(found[~support].any())
