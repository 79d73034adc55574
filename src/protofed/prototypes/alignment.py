"""Prototype alignment: spread directions over the unit sphere as repelling charges would.

Lee, Shin and Choi, *Heterogeneous Federated Learning with Prototype Alignment and Upscaling* (ProtoNorm),
Algorithm 1 and Eq. 10-14: momentum ascent on the forces of the logarithmic Thomson problem.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from protofed.compute import seeding
from protofed.prototypes.geometry import exact, unit_vectors, working

CHECK_FROM = 10  #: First iteration (counted from 0) whose mean force the stop rule considers

COINCIDENT = 1e-3  #: Directions closer than this (radians) count as the same one and are nudged apart

NUDGE = 1e-2  #: Approximate angle (radians) by which a direction is moved if it coincides with an earlier one


@dataclass(frozen=True)
class Alignment:
    """The result of :func:`align`."""

    directions: Tensor  #: ``(K, d)`` unit vectors ``ĉ_j``, in the dtype and on the device of the input
    iterations: int
    energy: float  #: ``E`` of Eq. 10 after the last update
    mean_forces: list[float]  #: ``mean_j ‖F_j‖`` before each update
    #: (min, mean, max) over pairs of ``‖ĉ_j − ĉ_k‖`` before each update; empty unless asked for
    distances: list[tuple[float, float, float]] = field(default_factory=list)


def align(
    prototypes: Tensor,
    *,
    momentum: float = 0.9,
    lr: float = 0.1,
    decay: float = 0.95,
    decay_every: int = 10,
    max_iterations: int = 500,
    patience: int = 10,
    decimals: int = 4,
    track_distances: bool = False,
    support: Tensor | None = None,
) -> Alignment:
    """Align ``(K, d)`` prototypes of any norm (ProtoNorm, Algorithm 1); ``K > d`` is fine.

    From ``u_j = C_j/‖C_j‖`` and ``v_j = 0`` repeat ::

        F_j = Σ_{k≠j} (u_j − u_k) / ‖u_j − u_k‖²       Eq. 11
        v_j ← μ v_j + η F_j                            Eq. 12
        u_j ← (u_j + v_j) / ‖u_j + v_j‖                Eq. 13, 14

    and stop once ``mean_j ‖F_j‖``, rounded to ``decimals``, equals its predecessor ``patience`` times in a row; the
    first value compared is that of iteration 10. ``η`` is multiplied by ``decay`` after iterations 0,
    ``decay_every``, 2·``decay_every``, ... (the paper's text can be read as starting after ``decay_every``; the
    authors' code starts at 0). With its defaults the rule stops short of the optimum. In float64 whatever the
    input's dtype: near convergence the stop rule compares digits that float32 does not have.

    Zero prototypes and prototypes less than 0.001 rad from an earlier one (no force would part equal ones) start
    from a direction drawn from a fixed seed: any for the former, about 0.01 rad away for the latter.

    ``support`` ``(K, d)`` bool has the coordinates in which each direction moves; in others it is 0.
    """
    within = None if support is None else support.to(exact(prototypes))
    u = distinct_directions(exact(prototypes), within=within)
    v = torch.zeros_like(u)
    F = torch.empty_like(u)
    W = u.new_empty(len(u), len(u))
    mean_forces: list[float] = []
    distances: list[tuple[float, float, float]] = []
    unchanged = 0
    for t in range(max_iterations):
        _squared_distances(u, out=W)
        if track_distances:
            distances.append(_distance_range(W))
        W.reciprocal_().fill_diagonal_(0.0)  # w_jk = 1/‖u_j − u_k‖²
        # F_j = Σ_k w_jk (u_j − u_k) = u_j·Σ_k w_jk − (W u)_j
        torch.mul(u, W.sum(1, keepdim=True), out=F).addmm_(W, u, alpha=-1.0)
        if within is not None:
            F.mul_(within)
        v.mul_(momentum).add_(F, alpha=lr)
        # Every force points away from the sphere's centre, hence so does v, and ‖u_j + v_j‖ ≥ 1.
        u.add_(v).div_(u.norm(dim=1, keepdim=True))
        mean_forces.append(float(F.norm(dim=1).mean()))
        if t % decay_every == 0:
            lr *= decay
        if t > CHECK_FROM:
            same = round(mean_forces[-1], decimals) == round(mean_forces[-2], decimals)
            unchanged = unchanged + 1 if same else 0
            if unchanged == patience:
                break
    return Alignment(u.to(prototypes), len(mean_forces), energy(u), mean_forces, distances)


def energy(directions: Tensor) -> float:
    """Return the energy ``E = Σ_{j<k} log 1/‖u_j − u_k‖`` of unit vectors (Eq. 10), coincident ones 1e-5 apart."""
    squared = _squared_distances(exact(directions))
    squared.fill_diagonal_(1.0)
    # Each pair occurs twice in the matrix, and log 1/x = −½ log x².
    return -0.25 * float(squared.log_().sum())


def distinct_directions(prototypes: Tensor, within: Tensor | None = None) -> Tensor:
    """Return the ``(K, d)`` rows' directions, made distinct so that forces can part them.

    ``within`` is 0 for the coordinates in which a direction has to be 0. Rows that are neither zero nor repeated
    are just normalised.
    """
    prototypes = working(prototypes)
    u = unit_vectors(prototypes if within is None else prototypes * within)
    zero = ~u.any(1)
    cosines = u @ u.T
    repeated = (cosines.tril(-1) > 1 - COINCIDENT**2 / 2).any(1)
    if bool((zero | repeated).any()):
        g = seeding.generator(0, "distinct directions")
        random = torch.randn(u.shape, generator=g, dtype=torch.float64).to(u)
        random = unit_vectors(random if within is None else random * within)
        u = torch.where(zero.unsqueeze(1), random, u)
        u = torch.where(repeated.unsqueeze(1), unit_vectors(u + NUDGE * random), u)
    return u


def _squared_distances(u: Tensor, out: Tensor | None = None) -> Tensor:
    """Return ``‖u_j − u_k‖² = 2 − 2 u_j·u_k`` of unit rows, floored above rounding error."""
    gram = torch.mm(u, u.T) if out is None else torch.mm(u, u.T, out=out)
    return gram.mul_(-2.0).add_(2.0).clamp_(min=1e-10)


def _distance_range(squared: Tensor) -> tuple[float, float, float]:
    """Return the smallest, mean and largest distance over pairs; 0 if there are none."""
    K = len(squared)
    if K < 2:
        return 0.0, 0.0, 0.0
    distances = squared.sqrt().fill_diagonal_(0.0)
    mean, high = float(distances.sum()) / (K * (K - 1)), float(distances.max())
    return float(distances.fill_diagonal_(torch.inf).min()), mean, high
