"""Fixed directions: the simplex equiangular tight frame, and its substitute for K > d."""

from __future__ import annotations

import torch
from torch import Tensor

from protofed.compute import seeding
from protofed.errors import ConfigError
from protofed.prototypes.alignment import align


def simplex_etf(K: int, d: int, seed: int = 0, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return a simplex equiangular tight frame ``Z`` (GFPL Eq. 9-10), ``(d, K)``, one class per column.

    ``A = QR`` for a random ``A``, then ``Z = √(K/(K−1)) Q (I_K − 1_K 1_Kᵀ/K)``: unit columns, every pair with
    cosine ``−1/(K−1)``, the widest angle K directions can share. The sign convention of QR is fixed (positive
    diagonal of R), so that any LAPACK gives the same Z. For one class, where Eq. 10 divides by 0, Z is ``q_1``.
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
    """Return K well-spread unit vectors ``(K, d)`` for any K, which all parties derive without communication.

    The columns of :func:`simplex_etf` as rows while ``K <= d``, else seeded random directions spread by 500
    iterations of :func:`~protofed.prototypes.alignment.align`.
    """
    if d >= K:
        return simplex_etf(K, d, seed, dtype=dtype).T.contiguous()
    g = seeding.generator(seed, "spread directions", K, d)
    start = torch.randn(K, d, generator=g, dtype=torch.float64)
    return align(start, max_iterations=500, patience=500).directions.to(dtype)
