"""Fixed directions: the simplex equiangular tight frame, and its substitute for K > d."""

from __future__ import annotations

import torch
from torch import Tensor

from protofed.compute import seeding
from protofed.errors import ConfigError
from protofed.prototypes.alignment import align


def simplex_etf(K: int, d: int, seed: int = 0, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a simplex equiangular tight frame ``Z`` (GFPL Eq. 9-10).

    ``A = QR`` for a random ``A``, then ``Z = √(K/(K−1)) Q (I_K − 1_K 1_Kᵀ/K)``: unit columns, every pair with
    cosine ``−1/(K−1)``, the widest angle K directions can share. The sign convention of QR is fixed (positive
    diagonal of R), so that any LAPACK gives the same Z.

    Args:
        K: For one class, where Eq. 10 divides by 0, Z is the unit vector ``q_1``.
        seed: Decides the orientation of the frame.
        dtype: The computation is in float64.

    Returns:
        ``(d, K)``, one class per column.

    Example:
        >>> Z = simplex_etf(3, 8, seed=1)
        >>> (Z.T @ Z)[0].round(decimals=4).tolist()
        [1.0, -0.5, -0.5]
    """
    if not 1 <= K <= d:
        raise ConfigError(f"simplex_etf: needs 1 <= K <= d, got K={K}, d={d}; raise d or use spread_directions")
    A = torch.randn(d, K, generator=seeding.generator(seed, "simplex etf", K, d), dtype=torch.float64)
    Q, R = torch.linalg.qr(A)  # Eq. 9
    Q = Q * torch.where(R.diagonal() < 0, -1.0, 1.0)
    if K > 1:
        Q = (K / (K - 1)) ** 0.5 * (Q - Q.mean(1, keepdim=True))  # Eq. 10: Q·11ᵀ/K is the mean column
    result: Tensor = Q.to(dtype)
    return result


def spread_directions(K: int, d: int, seed: int = 0, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return K well-spread unit vectors in ``R^d`` for any K, which all parties derive without communication.

    Args:
        seed: Decides the orientation, and for ``K > d`` the starting points.
        dtype: The computation is in float64.

    Returns:
        ``(K, d)``: the columns of :func:`simplex_etf` as rows while ``K <= d``, else seeded random directions
        spread by 500 iterations of :func:`~protofed.prototypes.alignment.align`.

    Example:
        >>> triangle = spread_directions(3, 2)
        >>> bool(((triangle @ triangle.T)[~torch.eye(3, dtype=bool)] + 0.5).abs().max() < 1e-3)
        True
    """
    if K < 1 or d < 1:
        raise ConfigError(f"spread_directions: needs K >= 1 and d >= 1, got K={K}, d={d}")
    if d >= K:
        return simplex_etf(K, d, seed, dtype=dtype).T.contiguous()
    g = seeding.generator(seed, "spread directions", K, d)
    start = torch.randn(K, d, generator=g, dtype=torch.float64)
    return align(start, max_iterations=500, patience=500).directions.to(dtype)
