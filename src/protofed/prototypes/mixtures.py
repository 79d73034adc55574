"""Prototypes that are distributions: Gaussian mixtures per class, fitted by clients and fused by the server.

Lu et al., *GFPL: Generative Federated Prototype Learning for Resource-Constrained and Data-Imbalanced Vision Task*,
Eq. 4-8 and Algorithm 1, with diagonal covariances: a component is a weight ``π``, a mean ``μ`` and standard
deviations ``σ``. :func:`fit_mixtures` also fits spherical covariances, as FedPFT sends them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from protofed.prototypes.geometry import exact, working

CHUNK = 2**24  #: Classes are fitted together while their padded features stay below this many numbers (128 MiB)

CANDIDATES = 3  #: Points tried for each further starting mean (greedy k-means++)

ROWS = 512  #: Components whose distances to all others :func:`fuse` bounds at once

Covariance = Literal["spherical", "diag"]
Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


class Mixture(NamedTuple):
    """Weights ``(c,)``, means and stds ``(c, d)`` of a diagonal mixture, or a batch ``(B, …)`` of them.

    Weights need not sum to 1; 0 marks an unused place.
    """

    weights: Tensor
    means: Tensor
    stds: Tensor


def fit_mixtures(
    features: Tensor,
    labels: Tensor,
    K: int,
    components: int = 4,
    *,
    generator: torch.Generator,
    iterations: int = 100,
    variance_floor: float = 1e-6,
    tolerance: float = 1e-3,
    covariance: Covariance = "diag",
) -> Mixture:
    """Fit a Gaussian mixture to the features of each class by expectation-maximisation (GFPL Eq. 5-6).

    Starts from greedy k-means++ means; computed in float64. There are never more components than distinct samples,
    so one sample, or many equal ones, give a single component at the variance floor. A fixed amount is drawn, so a
    class's start does not depend on the others' data; it ends when the mean log-likelihood per sample rises by less
    than ``tolerance``. Unused places, also of classes without samples, have weight, mean and std 0.
    """
    d = features.shape[1]
    x = exact(features)
    labels = labels.to(x.device)
    draws = torch.rand(K, components, CANDIDATES, generator=generator, dtype=torch.float64).to(x.device)
    weights, means, variances = x.new_zeros(K, components), *x.new_zeros(2, K, components, d)
    for classes, batch, valid in _batches(x, labels, K):
        centre = batch.sum(1, keepdim=True) / valid.sum(1)[:, None, None]
        batch = (batch - centre) * valid.unsqueeze(2)  # around 0, second moments keep their digits
        fitted = _fit(batch, valid, draws[classes], iterations, variance_floor, tolerance, covariance)
        used = (fitted[0] > 0).unsqueeze(2)
        weights[classes] = fitted[0]
        means[classes] = torch.where(used, fitted[1] + centre, 0.0)
        variances[classes] = torch.where(used, fitted[2], 0.0)
    return Mixture(*(part.to(features) for part in (weights, means, variances.sqrt())))


def sample(mixture: Mixture, r: int, generator: torch.Generator) -> Tensor:
    """Draw ``(r, d)`` pseudo-features from a mixture, or ``(B, r, d)`` from a batch (GFPL's feature generation)."""
    weights, means, stds = mixture
    shape = (*weights.shape[:-1], r)
    uniform = torch.rand(shape, generator=generator, dtype=torch.float64)
    chosen = choose(shares(weights), uniform).to(means.device)
    noise = torch.randn((*shape, means.shape[-1]), generator=generator, dtype=working(means).dtype).to(means)
    return place(means, stds, chosen, noise)


def shares(weights: Tensor) -> Tensor:
    """Return the cumulative shares of components in their mixture, on the CPU and in float64; the last is 1."""
    totals = weights.detach().cpu().double().cumsum(-1)
    return totals / totals[..., -1:]


def choose(shares: Tensor, uniform: Tensor) -> Tensor:
    """Return components drawn in proportion to their weights, as a pure function of ``(..., r)`` uniform numbers.

    The first component whose cumulative share exceeds the number, never one of weight 0.
    """
    return (uniform.unsqueeze(-1) >= shares.unsqueeze(-2)).sum(-1)


def gaussian(uniform: Tensor) -> Tensor:
    """Return standard normal numbers, as a pure function of uniform ones in [0, 1) with a spacing of 2⁻²⁴."""
    result: Tensor = torch.special.ndtri(uniform.clamp(2**-25, 1 - 2**-25))
    return result


def place(means: Tensor, stds: Tensor, chosen: Tensor, noise: Tensor) -> Tensor:
    """Return ``μ + σ·ε`` of the chosen components (GFPL Eq. 4)."""
    index = chosen.unsqueeze(-1).expand(noise.shape)
    return means.gather(-2, index) + stds.gather(-2, index) * noise


def stack(mixtures: Sequence[Mixture]) -> Mixture:
    """Return a batch of mixtures with different numbers of components, padded with places of weight 0."""
    fields = (
        torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True) for parts in zip(*mixtures, strict=True)
    )
    return Mixture(*fields)


def fuse(weights: Tensor, means: Tensor, variances: Tensor, threshold: float = 1.0) -> Mixture:
    """Fuse the components that all clients report for one class (GFPL Algorithm 1) into clusters, by their seeds.

    A cluster grows from a seed by components whose Bhattacharyya distance to *all* its members is below ``S_C``;
    then each cluster becomes one component of the same total weight, mean and (diagonal) covariance (lines 14-16).
    Two points the algorithm leaves open:

    * Line 6 collects a set of components that are near all present members, and line 9 adds the whole set without
      comparing its components with one another. Here they join one at a time, nearest to the seed first, and each
      is compared with every member: all pairs inside a cluster are below ``S_C``.
    * The seed is any remaining component. Here it is the heaviest (ties are settled by the components' content), so
      the result is the same, bit for bit, in whatever order clients report.
    """
    used = weights > 0
    # Adding 0 turns -0.0, which has other bytes, into 0.0.
    w, m, v = (t.detach()[used].to("cpu", torch.float64).numpy() + 0.0 for t in (weights, means, variances))
    order = sorted(range(len(w)), key=lambda i: (-w[i], m[i].tobytes(), v[i].tobytes()))
    w, m, v = w[order], m[order], v[order]
    cluster = _clusters(m, v, threshold)

    def total(rows: Floats) -> Floats:
        sums = np.zeros((cluster.max() + 1, *rows.shape[1:]))
        np.add.at(sums, cluster, rows)  # in canonical order
        return sums

    share = w[:, None]
    weight = total(w)
    mean = total(share * m) / weight[:, None]  # line 15
    variance = total(share * (v + (m - mean[cluster]) ** 2)) / weight[:, None]  # line 16
    return Mixture(*(torch.from_numpy(part).to(means) for part in (weight, mean, np.sqrt(variance))))


def _batches(x: Tensor, labels: Tensor, K: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield classes of similar size together: indices (B,), features (B, n, d) padded by 0, valid (B, n)."""
    counts = torch.bincount(labels, minlength=K).cpu()
    by_class = labels.argsort(stable=True)
    starts = counts.cumsum(0) - counts
    sizes, classes = counts.sort(descending=True, stable=True)
    first, last = 0, int((sizes > 0).sum())
    while first < last:
        size = int(sizes[first])
        group = classes[first : min(last, first + max(1, CHUNK // (size * x.shape[1])))]
        places = torch.arange(size)
        valid = places < counts[group].unsqueeze(1)
        rows = torch.where(valid, starts[group].unsqueeze(1) + places, 0).to(x.device)
        valid = valid.to(x)
        yield group.to(x.device), x[by_class[rows]] * valid.unsqueeze(2), valid
        first += len(group)


def _fit(
    x: Tensor, valid: Tensor, draws: Tensor, iterations: int, floor: float, tolerance: float, covariance: Covariance
) -> tuple[Tensor, Tensor, Tensor]:
    """Run EM on a batch; return weights (B, c), means (B, c, d) and variances (B, c, d)."""
    squares = x.square()
    counts = valid.sum(1)
    γ = _start(x, valid, draws)  # responsibilities, (B, n, c)
    weights = means = variances = x.new_zeros(0)
    previous = x.new_full(counts.shape, -torch.inf)
    running = torch.ones_like(previous, dtype=torch.bool)
    for iteration in range(iterations):
        # M step (Eq. 6). A component that nobody belongs to keeps weight 0 from then on.
        N = γ.sum(1)
        per_sample = N.clamp(min=torch.finfo(N.dtype).tiny).reciprocal().unsqueeze(2)
        mean = per_sample * (γ.mT @ x)
        variance = per_sample * (γ.mT @ squares) - mean.square()
        if covariance == "spherical":
            variance = variance.mean(2, keepdim=True).expand_as(mean)
        fresh = N / counts.unsqueeze(1), mean, variance.clamp(min=floor)
        if iteration == 0:
            weights, means, variances = fresh
        else:
            weights = torch.where(running[:, None], fresh[0], weights)
            means = torch.where(running[:, None, None], fresh[1], means)
            variances = torch.where(running[:, None, None], fresh[2], variances)
        # E step (Eq. 5)
        joint = _log_joint(x, weights, means, variances)
        evidence = joint.logsumexp(2)
        γ = (joint - evidence.unsqueeze(2)).exp() * valid.unsqueeze(2)
        likelihood = (evidence * valid).sum(1) / counts
        running = running & ((likelihood - previous).abs() >= tolerance)
        previous = likelihood
        if not bool(running.any()):
            break
    # Weights too small for any sample count as unused.
    weights = torch.where(weights * counts.unsqueeze(1) < 1e-8, 0.0, weights)
    return weights / weights.sum(1, keepdim=True), means, variances


def _start(x: Tensor, valid: Tensor, draws: Tensor) -> Tensor:
    """Return each sample's nearest starting mean as a one-hot (B, n, c), by greedy k-means++.

    A class with fewer distinct samples than places leaves the remaining places empty.
    """
    B, n = valid.shape
    batch = torch.arange(B, device=x.device)
    nearest = valid.new_full((B, n), torch.inf)
    owner = torch.zeros((B, n), dtype=torch.int64, device=x.device)
    places = draws.shape[1]
    for place in range(places):
        # Chances proportional to the squared distance from the means chosen so far; equal at first.
        chance = (valid if place == 0 else nearest * valid).cumsum(1)
        total = chance[:, -1:]
        candidates = torch.searchsorted(chance, (draws[:, place] * total).contiguous(), right=True)
        candidates = candidates.clamp(max=n - 1)  # (B, t)
        distances = torch.stack(
            [(x - x[batch, candidate].unsqueeze(1)).square().sum(2) for candidate in candidates.T], 1
        )  # (B, t, n)
        best = (torch.minimum(distances, nearest.unsqueeze(1)) * valid.unsqueeze(1)).sum(2).argmin(1)
        distance = distances[batch, best]
        closer = (distance < nearest) & (total > 0)  # total 0: every sample coincides with a mean already
        owner = torch.where(closer, place, owner)
        nearest = torch.where(closer, distance, nearest)
    return torch.nn.functional.one_hot(owner, places).to(x) * valid.unsqueeze(2)


def _log_joint(x: Tensor, weights: Tensor, means: Tensor, variances: Tensor) -> Tensor:
    """Return ``log π_i + log N(x | μ_i, σ_i²)`` of samples (B, n, d) as (B, n, c)."""
    precision = variances.reciprocal()
    # Σ_l (x_l − μ_l)²/σ_l², expanded so that two matrix products do it; the callers centre x.
    quadratic = (
        x.square() @ precision.mT
        - 2 * x @ (means * precision).mT
        + (means.square() * precision).sum(2).unsqueeze(1)
    ).clamp(min=0.0)
    constant = weights.log() - 0.5 * (variances.log().sum(2) + x.shape[2] * math.log(2 * math.pi))
    return constant.unsqueeze(1) - 0.5 * quadratic


def _clusters(means: Floats, variances: Floats, threshold: float) -> Indices:
    """Return each component's cluster (lines 3-12), numbered by seed; components come in canonical order.

    Bounds on D_B, a matrix product for many pairs at once, settle most of them; only the others are computed.
    """
    cluster = np.full(len(means), -1, dtype=np.int64)
    precision = 1 / variances
    lower = _Bound(
        means, variances, (precision * means).mean(0) / precision.mean(0), 1 / precision.mean(0), "lower"
    )
    clusters = 0
    while len(free := np.flatnonzero(cluster < 0)):
        seeds = free[:ROWS]
        outside = lower.rows(seeds, first=seeds[0]) >= threshold
        for row, seed in zip(outside, seeds, strict=True):
            if cluster[seed] >= 0:
                continue
            cluster[seed] = clusters
            near = seeds[0] + np.flatnonzero(~row)
            near = near[cluster[near] < 0]
            distance = _distances(seed, near, means, variances)
            near, distance = near[distance < threshold], distance[distance < threshold]
            near = near[np.argsort(distance, kind="stable")]  # nearest to the seed first
            cluster[_compatible(near, means, variances, means[seed], variances[seed], threshold)] = clusters
            clusters += 1
    return cluster


def _compatible(
    near: Indices, means: Floats, variances: Floats, seed_mean: Floats, seed_variance: Floats, threshold: float
) -> Indices:
    """Return the members of the cluster: those of ``near``, in order, that are close to all before."""
    upper = _Bound(means[near], variances[near], seed_mean, seed_variance, "upper")
    candidate = np.ones(len(near), dtype=np.bool_)
    doubt = np.zeros((0, 0), dtype=np.bool_)
    for position, member in enumerate(near):
        if position % ROWS == 0:
            doubt = ~(upper.rows(np.arange(position, min(position + ROWS, len(near))), first=position) < threshold)
        if not candidate[position]:
            continue
        start = position - position % ROWS
        doubtful = start + np.flatnonzero(doubt[position - start] & candidate[start:])
        doubtful = doubtful[doubtful > position]
        if len(doubtful):
            candidate[doubtful] = _distances(member, near[doubtful], means, variances) < threshold
    return near[candidate]


def _distances(one: int, many: Indices, means: Floats, variances: Floats) -> Floats:
    """Return the Bhattacharyya distance from one component to many (GFPL Eq. 8); rounding makes none negative.

    ::

        D_B = 1/8 Σ_l (μ_al − μ_bl)²/σ̄_l² + 1/2 Σ_l ln(σ̄_l² / (σ_al σ_bl)),    σ̄² = (σ_a² + σ_b²)/2
    """
    double = variances[many] + variances[one]  # 2σ̄²
    apart = means[many] - means[one]
    quadratic = np.divide(np.square(apart, out=apart), double, out=apart).sum(1) / 4
    double *= 0.5 / np.sqrt(variances[one])
    double /= np.sqrt(variances[many])
    result: Floats = quadratic + np.maximum(np.log(double, out=double).sum(1) / 2, 0.0)
    return result


class _Bound:
    """A lower or an upper bound on D_B between all pairs of components, by matrix products.

    With ``x = ln(σ_a/σ_b)`` the average variance is ``σ_a σ_b cosh x``, so that ::

        D_B = 1/8 Σ_l Δμ_l²/(σ_al σ_bl) · sech x_l + 1/4 Σ_l x_l² · (ln cosh x_l)/(x_l²/2)

    where both last factors fall with |x| from 1 at x = 0. Replaced by 1 they give an upper bound; by their values
    at the largest |x| that dimension l has among the components, a lower bound. Either is a sum of products of a
    factor of a and one of b. Both are tight when the components' widths are alike.
    """

    def __init__(self, means: Floats, variances: Floats, centre: Floats, scale: Floats, side: str) -> None:
        with np.errstate(over="ignore"):
            # Factors relative to a typical component are of order 1, and little is lost to rounding.
            m = (means - centre) / np.sqrt(scale)
            x = 0.5 * np.log(variances / scale)
            r = np.exp(-x)
            far, near = np.ones(means.shape[1]), np.ones(means.shape[1])
            if side == "lower":
                widest = np.ptp(x, axis=0)
                far = 1 / np.cosh(widest)
                log_cosh = widest + np.log1p(np.exp(-2 * widest)) - math.log(2)
                near = np.divide(2 * log_cosh, widest**2, out=near, where=widest > 1e-3)
                near = np.minimum(near, 1.0)
            # 1/8 (m_a − m_b)² r_a r_b + 1/4 (x_a − x_b)², squares expanded
            self.left = np.concatenate([m**2 * r, r, m * r, x], axis=1)
            self.right = np.concatenate([far * r / 8, far * m**2 * r / 8, -far * m * r / 4, -near * x / 2], axis=1)
            self.squares = (near * x**2).sum(1) / 4
        # Rounding of a sum of products is within its length times eps of the factors' norms.
        sign = 1.0 if side == "upper" else -1.0
        self.slack = sign * 4 * self.left.shape[1] * np.finfo(np.float64).eps
        self.left_norms = np.linalg.norm(self.left, axis=1)
        self.right_norms = np.linalg.norm(self.right, axis=1)

    def rows(self, rows: Indices, first: int) -> Floats:
        """Return the bounds between the given components and all from ``first`` on; NaN or infinite if unknown."""
        with np.errstate(over="ignore", invalid="ignore"):
            bound = self.left[rows] @ self.right[first:].T
            bound += self.squares[rows, None]
            bound += self.squares[first:]
            # One rank more: the allowance for rounding.
            bound += (self.slack * self.left_norms[rows])[:, None] * self.right_norms[first:]
        result: Floats = bound
        return result
