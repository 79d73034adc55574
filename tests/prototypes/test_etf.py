from __future__ import annotations

import pytest
import torch

from protofed.prototypes.etf import simplex_etf, spread_directions

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(("K", "d"), [(2, 2), (3, 8), (10, 10), (100, 512)])
def test_gram_matrix_is_that_of_the_simplex(K, d):
    Z = simplex_etf(K, d, seed=3, dtype=torch.float64)
    assert Z.shape == (d, K)
    eye = torch.eye(K, dtype=torch.float64)
    expected = K / (K - 1) * eye - 1 / (K - 1)  # Eq. 3
    torch.testing.assert_close(Z.T @ Z, expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(Z.sum(1), torch.zeros(d, dtype=torch.float64), rtol=0, atol=1e-10)


def test_orientation_does_not_depend_on_the_sign_convention_of_qr():
    """With K = 1, Q is the normalised random column itself, never its negative."""
    from protofed.compute import seeding

    A = torch.randn(6, 1, generator=seeding.generator(4, "simplex etf", 1, 6), dtype=torch.float64)
    torch.testing.assert_close(simplex_etf(1, 6, seed=4, dtype=torch.float64), A / A.norm())


@pytest.mark.parametrize(("K", "d"), [(1, 3), (4, 7), (7, 7)])
def test_spread_directions_are_the_frame_while_it_exists(K, d):
    assert torch.equal(spread_directions(K, d, seed=2), simplex_etf(K, d, seed=2).T)


def test_more_directions_than_dimensions_are_well_spread():
    u = spread_directions(30, 5, seed=0, dtype=torch.float64)
    assert u.shape == (30, 5)
    torch.testing.assert_close(u.norm(dim=1), torch.ones(30, dtype=torch.float64))
    random = torch.nn.functional.normalize(torch.randn(30, 5, generator=torch.Generator().manual_seed(0)), dim=1)
    nearest = (u @ u.T).fill_diagonal_(-1).max()
    assert nearest < 0.75 < (random @ random.T).fill_diagonal_(-1).max()
    assert torch.equal(u, spread_directions(30, 5, seed=0, dtype=torch.float64))
