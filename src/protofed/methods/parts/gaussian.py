"""Linear discriminants of a client's own sums and all others', chosen by the client's own samples.

Class means and scatter are pooled for different reasons: the means of a client may differ from the others' while
the shape of a class is the same, of which few samples tell little. A mixture therefore has the class means of a
client's samples and κ times all others', and its scatter about its own class means plus c times the others' about
theirs; or everything is that of all samples together, with what lies between clients.

Each client chooses its own mixture and shrinkage by the log-likelihoods of its samples, each left out in turn. With
``u = x − μ_k``, ``w`` the sample less the mean about which the scatter was taken, and ``r = n/(n − 1)`` for the
number of samples in that mean, leaving it out takes ``r·wwᵀ`` from the scatter (Sherman and Morrison, 1950), and
its distance from its class is ``r·u``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from protofed.methods.given import Tensors
from protofed.methods.parts.moments import Linear, Sums, floor, part_of, solve, symmetric, triangle
from protofed.methods.parts.prior import RHO
from protofed.text import few

Shrinkage = float | Literal["oas"]
Kind = tuple[float | None, Shrinkage]  #: c and s of mixtures with one covariance
SHRINKAGE = "s of the covariance (1 - s)·Σ + s·tr(Σ)/d·I: "
SHRINKAGES: tuple[Shrinkage, ...] = ("oas", 0.03, 0.1)
"""Values of ``s`` among which a client chooses; the first stands where nobody does."""
KAPPAS = (1.0, 0.3, 0.1, 0.03, 0.01, 0.0)  #: Values of κ among which a client chooses
SHARES = (1.0, 0.1)  #: Values of c among which a client chooses; without others' class means also 0
TEMPERATURES = (0.25, 0.03)
"""Factors of log-posteriors with their doubles and quadruples, the best of which counts: classifiers of few samples
are overconfident."""
LEAST = -20.0  #: Least log-likelihood of a sample
STEPS = 128  #: Quantiles of a client's own distances that are kept
PREFERENCE = 2.0  #: Nats by which any other mixture must be more likely than that of all samples together
TIE = 0.01  #: Nats by which the best may be better than the one chosen, the first of nearly equal ones
NAMED = 5  #: Most clients without a choice whose names are given
VOTERS = 500  #: Most samples of a client that are left out
MOST = 2**20  #: Most scores that are computed together


class Mix(NamedTuple):
    """How others' sums count."""

    kappa: float  # κ of their class sums
    share: float | None  # c of their scatter within clients and classes; None for that of all samples together
    shrinkage: Shrinkage
    view: int = 0  # place of the features that count among those side by side


@lru_cache(maxsize=8)
def list_mixtures(shrinkages: tuple[Shrinkage, ...], views: int, alone: bool) -> tuple[Mix, ...]:
    """Return the mixtures to choose from, that of all samples together first; those of one view stand together."""
    together: list[tuple[float, float | None]] = [(1.0, None), *itertools.product(KAPPAS, SHARES)]
    places = [*([] if alone else together), (0.0, 0.0)]
    return tuple(Mix(*place, s, view) for view in range(views) for place in places for s in shrinkages)


@lru_cache(maxsize=8)
def _kinds(mixtures: tuple[Mix, ...]) -> tuple[list[Kind], Tensor, Tensor, Tensor]:
    """Return the kinds of mixtures; of each its kind and its κ, ``(m, 1)``; and those of all samples together."""
    kinds = list(dict.fromkeys((m.share, m.shrinkage) for m in mixtures))
    of = torch.tensor([kinds.index((m.share, m.shrinkage)) for m in mixtures])
    kappas = torch.tensor([[m.kappa] for m in mixtures], dtype=torch.float64)
    return kinds, of, kappas, torch.tensor([m.share is None for m in mixtures]).nonzero().squeeze(-1)


@dataclass(frozen=True)
class Pools:
    """What a client knows: the sums of its own samples and of all others'."""

    own: Sums
    others: Sums
    within: Tensor  #: ``Σ_j W_j`` over all others, their scatter about each client's own class means, ``(d, d)``
    views: int = 1  #: Number of equally long features side by side, of which one counts
    _covariances: dict[float | None, tuple[Tensor, float]] = field(default_factory=dict, init=False)
    _lower: dict[Kind, Tensor] = field(default_factory=dict, init=False)

    @classmethod
    def alone(cls, own: Sums, views: int = 1) -> Pools:
        """Return those of a client that hears of nobody."""
        none = Sums.none(*own.sums.shape, second=True)
        return cls(own, none, none.moment, views)

    def view(self, number: int) -> Pools:
        """Return those of one of the features side by side."""
        if self.views == 1:
            return self
        here = part_of(len(self.within), number, self.views)
        own, others = (part.view(number, self.views) for part in (self.own, self.others))
        return Pools(own, others, self.within[here, here])

    def mixtures(self, shrinkages: Sequence[Shrinkage]) -> tuple[Mix, ...]:
        """Return the mixtures to choose from."""
        return list_mixtures(tuple(shrinkages), self.views, not bool((self.others.counts > 0).any()))

    def covariance(self, share: float | None) -> tuple[Tensor, float]:
        """Return the covariance within classes for the c of a mixture, and its number of samples."""
        if share not in self._covariances:
            n, more = float(self.own.counts.sum()), float(self.others.counts.sum())
            if share is None:
                whole, number = self.own.plus(self.others).scatter, n + more
            else:
                whole, number = self.own.scatter + share * self.within, n + share * more
            self._covariances[share] = whole / max(number, 1.0), number
        return self._covariances[share]

    def classifier(self, mixture: Mix, dtype: torch.dtype) -> Linear:
        """Return the discriminant of a mixture."""
        seen = self.view(mixture.view)
        total = seen.own.plus(seen.others, mixture.kappa)
        found = discriminant(total, mixture.shrinkage, dtype, *seen.covariance(mixture.share))
        return found.beside(mixture.view, self.views)

    def leave_out(
        self, x: Tensor, y: Tensor, mixtures: Sequence[Mix], dtype: torch.dtype
    ) -> Iterator[tuple[tuple[Mix, ...], Tensor]]:
        """Yield log-posteriors, up to a constant, of samples that are left out, each by the sums of all the rest.

        Shrinkage and mean variance are those of all samples.

        Args:
            y: ``(n,)`` their classes, which have further samples of it.

        Yields:
            Some of the mixtures, and ``(mixtures, n, K')`` over the client's own K' classes, in order.
        """
        kinds, kind_of, _, _ = _kinds(tuple(mixtures))
        held = self.own.counts.nonzero().squeeze(-1)
        place = torch.searchsorted(held, y)
        n_own, n_others, origin = self.own.counts[held], self.others.counts[held], x.mean(0)
        own, others = (part.means.rows[held] - origin for part in (self.own, self.others))
        lower, factors = self._factors(kinds, dtype)
        rows = torch.cat([x - origin - own[place], own, others]).mT.expand(len(kinds), -1, -1)
        white = torch.linalg.solve_triangular(lower, rows, upper=False).mT
        # All else follows from products of these: u = x - m_y with the client's mean m, and of others' means o.
        u, both = white.split([len(x), 2 * len(held)], 1)
        u_u = u.square().sum(-1, keepdim=True)
        u_m, u_o = (u @ both.mT).chunk(2, -1)
        (m_m, m_o), (_, o_o) = (part.chunk(2, -1) for part in (both @ both.mT).chunk(2, 1))
        from_own = u_m.gather(-1, place.expand(len(kinds), -1).unsqueeze(-1))
        single = torch.nn.functional.one_hot(place, len(held)).to(x)
        prior = (n_own + RHO - single).log()
        at_once = max(1, MOST // max(1, prior.numel()))
        for first in range(0, len(mixtures), at_once):
            chosen = tuple(mixtures[first : first + at_once])
            _, _, kappas, whole = _kinds(chosen)
            at = kind_of[first : first + at_once]
            n = n_own + kappas * n_others
            a = (n_own / n).unsqueeze(1)  # μ = a·m + (1 - a)·o
            m_m_, m_o_ = m_m[at], m_o[at]
            m_mu = a * m_m_ + (1 - a) * m_o_
            mu_mu = a.mT * m_mu + (1 - a.mT) * (a * m_o_.mT + (1 - a) * o_o[at])
            apart = from_own[at] - a * u_m.index_select(0, at) - (1 - a) * u_o.index_select(0, at)
            squares, w_w = m_m_.diagonal(dim1=1, dim2=2), u_u[at]
            cross = w_w + apart
            between = squares.unsqueeze(-1) - 2 * m_mu + mu_mu.diagonal(dim1=1, dim2=2).unsqueeze(1)
            distance = (cross + apart).add_(between.index_select(1, place))
            number = n_own.expand(n.shape)
            if len(whole):  # its scatter is about the means μ, any other about the client's own
                mine = place.expand(len(whole), -1).unsqueeze(-1)
                about = (squares.unsqueeze(-1) - m_mu - m_mu.diagonal(dim1=1, dim2=2).unsqueeze(-1) + mu_mu)[whole]
                cross[whole] += apart[whole].gather(-1, mine) + about.index_select(1, place)
                w_w[whole] = distance[whole].gather(-1, mine)
                number = number.index_copy(0, whole, n[whole])
            c = factors[at].view(-1, 1, 1) * (number / (number - 1))[:, place].unsqueeze(-1)
            distance += (c / (1 - c * w_w).clamp(min=1e-12)) * cross.square_()
            # A sample that is left out is n/(n - 1) times as far from the mean of its class, and as from others'.
            distance *= (single / (n - 1)[:, place].unsqueeze(-1)).add_(1).square_()
            yield chosen, prior - distance.mul_(0.5)

    def distances(self, x: Tensor, y: Tensor, chosen: Selection, dtype: torch.dtype) -> Tensors:
        """Return by what new samples are known to be like the client's: the metric, means, and its own distances.

        Returns:
            ``metric``, the inverse covariance as a triangle; ``centres`` ``(K, d)``; both of the place ``view`` of
            features side by side; ``near`` ``(K + 1, 1 + STEPS)``, per class and of all together the number of
            squared distances of samples, left out, from their class, and quantiles of these.
        """
        mixture, scores = chosen.mixture, chosen.scores
        seen, here = self.view(mixture.view), part_of(x.shape[1], mixture.view, self.views)
        total = seen.own.plus(seen.others, mixture.kappa)
        means = total.sums / total.counts.clamp(min=1e-9).unsqueeze(-1)
        near = x.new_zeros(len(means) + 1, 1 + STEPS)
        if len(some := voters(y, seen.own.counts)):
            held, y = seen.own.counts.nonzero().squeeze(-1), y[some]
            if scores is None:
                ((_, (scores,)),) = seen.leave_out(x[some, here], y, [mixture], dtype)
            place = torch.searchsorted(held, y).unsqueeze(-1)
            prior = (seen.own.counts[y] + RHO - 1).log()
            found = 2 * (prior - scores.gather(-1, place).squeeze(-1)).nan_to_num(nan=0.0, posinf=0.0)
            order = found.argsort()
            by_class = order[y[order].argsort(stable=True)]
            number = torch.bincount(y, minlength=len(means))
            steps = torch.arange(STEPS) * number.unsqueeze(-1) // STEPS + (number.cumsum(0) - number).unsqueeze(-1)
            near[:-1, 0], near[-1, 0] = number, len(y)
            near[:-1, 1:] = found[by_class][steps.clamp(max=len(y) - 1)] * (number > 0).unsqueeze(-1)
            near[-1, 1:] = found[order[torch.arange(STEPS) * len(y) // STEPS]]
        if (kind := (mixture.share, mixture.shrinkage)) not in seen._lower:
            seen._factors([kind], dtype)
        metric = triangle(torch.cholesky_inverse(seen._lower[kind]).nan_to_num(nan=0.0))
        view = torch.tensor(mixture.view)
        parts = {"metric": metric.to(dtype), "centres": means.to(dtype), "near": near.to(dtype)}
        return {**parts, "view": view}

    def _factors(self, kinds: Sequence[Kind], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return lower factors ``(m, d, d)`` of covariances from which samples are to be left out.

        Returns:
            Also the factors ``(m,)`` with which a sample's ``r·wwᵀ`` is part of each.
        """
        covariances = {share: self.covariance(share) for share, _ in kinds}
        best = {share: oracle(*covariance) for share, covariance in covariances.items()}
        values, square = [], self.own.plus(self.others).square
        for share, shrinkage in kinds:
            n = covariances[share][1]
            s, rest = best[share] if shrinkage == "oas" else float(shrinkage), max(n - 1, 1.0)
            values.append(((1 - s) * max(n, 1.0) / rest, s, (1 - s) / rest))
        of, mixed, factors = torch.tensor(values, dtype=torch.float64).unbind(1)
        matrices = torch.stack([covariances[share][0] for share, _ in kinds])
        diagonal = mixed * matrices.diagonal(dim1=1, dim2=2).mean(-1).clamp(min=0) + floor(square, dtype)
        matrices *= of.view(-1, 1, 1)
        matrices.diagonal(dim1=1, dim2=2).add_(diagonal.unsqueeze(-1))
        lower, failed = torch.linalg.cholesky_ex(matrices)
        if bool(failed.any()):
            lower[failed > 0] = float("nan")  # sums of clients that lie need not have a covariance
        self._lower.update(zip(kinds, lower.unbind(), strict=True))
        return lower, factors


def typical(features: Tensor, received: Tensors, known: Tensor) -> Tensor:
    """Return p-values of samples: the largest over classes of that of the distance from a class, ``(n,)``.

    As in cross-conformal prediction by class (Vovk, 2015), a sample of a known class is rarely less typical than a
    share p of that class's own: its distance is compared with theirs, each left out of what it is compared with.
    Where a client has no two samples of a class, it is with those of all its samples from their classes.

    Args:
        received: With the tensors of :meth:`Pools.distances`.
        known: ``(K,)`` bool, the classes that can be answered.
    """
    centres, near = received["centres"].double(), received["near"].double()
    d, view = centres.shape[1], int(received["view"])
    apart = features[:, view * d : (view + 1) * d].double().unsqueeze(1) - centres[known]
    metric = symmetric(received["metric"].double(), d)
    squares = ((apart @ metric) * apart).sum(-1)
    own = torch.where(near[:-1, :1] > 0, near[:-1], near[-1:])[known]
    number, steps = own[:, 0], own[:, 1:].contiguous()
    below = torch.searchsorted(steps, squares.mT.contiguous()).mT / STEPS  # share of the class that is nearer
    found: Tensor = ((1 + (1 - below) * number) / (number + 1)).amax(-1)
    return found


class Selection(NamedTuple):
    """A client's choice."""

    mixture: Mix
    voters: int  # number of its samples that were left out in turn; 0 if it has one class, or no second one of any
    scores: Tensor | None = None  # ``(voters, K')`` their log-posteriors by the mixture; None if nothing was chosen

    def tensor(self, views: int = 1) -> Tensor:
        """Return κ, c (-1 for all samples together), s (-1 for oas), number of voters, and view, ``(5,)``.

        Args:
            views: Number of views; with one, there was no choice: -1.
        """
        kappa, share, s, view = self.mixture
        values = [kappa, -1.0 if share is None else share, -1.0 if s == "oas" else s, self.voters]
        return torch.tensor([*values, view if views > 1 else -1.0])


def describe_choices(choices: Mapping[str, Tensor]) -> str:
    """Return in whole sentences what clients have chosen, from :meth:`Selection.tensor` of each by name."""
    groups: dict[str, list[str]] = {}
    views: dict[float, list[str]] = {}
    for name, choice in choices.items():
        kappa, share, _, number, view, *_ = choice.tolist()  # a sixth of version 0.2
        own = "nothing of others" if share == 0 else "own class means with others' scatter"
        some = f"others' class means at {kappa:g} of their weight" if kappa else own
        groups.setdefault("the sums of all" if share == -1 else some, []).append(name)
        views.setdefault(view, []).append(name)
        if not number:
            groups.setdefault("", []).append(name)
    mute = groups.pop("", [])
    parts = [f"{what} ({len(names)})" for what, names in sorted(groups.items(), key=lambda g: -len(g[1]))]
    chosen = f"Clients chose by their own samples, each left out in turn: {', '.join(parts)}."
    together, apart = views.get(0, []), views.get(1, [])
    if together or apart:
        chosen += " " + (
            f"Clients measure alike at {few(together, NAMED)} (standardised together) and otherwise at "
            f"{few(apart, NAMED)} (standardised by site)."
            if together and apart
            else "Clients measure alike: standardised together."
            if together
            else "Each client measures in its own way: standardised by site."
        )
    if not mute:
        return chosen
    why = "one class, or no second sample of any"
    return f"{chosen} Without a choice ({why}), and so with the first: {few(mute, NAMED)}."


def voters(labels: Tensor, counts: Tensor) -> Tensor:
    """Return the positions of samples that are left out: at most :data:`VOTERS`, none the only one of its class."""
    able = (counts[labels] > 1).nonzero().squeeze(-1)
    return able if len(able) <= VOTERS else able[torch.arange(VOTERS) * len(able) // VOTERS]


def likelihoods(scores: Tensor, y: Tensor) -> Tensor:
    """Return the sum of the log-likelihoods of samples, at the best temperature, for each of several classifiers.

    Args:
        scores: ``(m, n, K)`` log-posteriors up to a constant.
    """
    scores = (scores - scores.gather(-1, y.view(1, -1, 1).expand(len(scores), -1, 1))).movedim(-1, 0).contiguous()
    least = -5 * LEAST  # from there on nothing but the bound counts, and no fourth power overflows
    found = []
    for temperature in TEMPERATURES:
        powers = (temperature * scores).clamp_(max=least).exp_()
        for _ in range(3):
            found.append(powers.sum(0).log_().neg_().clamp_(min=LEAST).sum(-1))
            powers.square_()
    return torch.stack(found).amax(0)


def choose(
    pools: Pools, features: Tensor, labels: Tensor, shrinkages: Sequence[Shrinkage], dtype: torch.dtype
) -> Selection:
    """Return the choice of a client: the mixture under which its own samples are most likely.

    Args:
        features: ``(n, d)`` float64 of the client's training samples.
        dtype: Type in which moments were sent.
    """
    mixtures = pools.mixtures(shrinkages)
    some = voters(labels, pools.own.counts)
    held = pools.own.counts.nonzero().squeeze(-1)
    if not len(some) or len(held) == 1 or len(mixtures) == 1:
        return Selection(mixtures[0], 0)
    y = torch.searchsorted(held, labels[some])
    values: list[float] = []
    left: list[tuple[Tensor, int]] = []
    for view in range(pools.views):
        x = features[some, part_of(features.shape[1], view, pools.views)]
        own = [mixture for mixture in mixtures if mixture.view == view]
        for chosen, scores in pools.view(view).leave_out(x, labels[some], own, dtype):
            sums = likelihoods(scores, y).nan_to_num(nan=-math.inf, neginf=-math.inf).tolist()
            values += (v - PREFERENCE * (m.share is not None) for v, m in zip(sums, chosen, strict=True))
            left += ((scores, number) for number in range(len(scores)))
    least = max(values) - TIE
    best = next(number for number, value in enumerate(values) if value >= least)
    scores, number = left[best]
    return Selection(mixtures[best], len(some), scores[number])


def discriminant(
    total: Sums,
    shrinkage: Shrinkage,
    dtype: torch.dtype,
    covariance: Tensor | None = None,
    samples: float | None = None,
) -> Linear:
    """Return the classifier with the scores ``μ_kᵀΣ⁻¹φ − ½·μ_kᵀΣ⁻¹μ_k``.

    They are log-likelihoods of Gaussians with one covariance, up to what all classes share. For the sake of small
    numbers, the mean of all samples is the origin, which changes no difference of scores. Without any variance,
    Σ is a multiple of I, and the nearest mean the answer.

    Args:
        dtype: Type in which moments were sent.
        covariance: ``Σ`` before it is shrunk; None for that of the same samples.
        samples: Number of samples of which it was made.
    """
    n = total.counts.sum().clamp(min=1e-9)
    means = total.means
    origin = total.sums.sum(0) / n
    apart = (means.rows - origin) * means.present.unsqueeze(-1)
    sigma, size = (total.scatter / n, float(n)) if covariance is None or samples is None else (covariance, samples)
    weights = solve(shrink(sigma, size, shrinkage), apart.mT, total.square, dtype).mT
    return Linear(weights, -0.5 * (weights * apart).sum(-1) - weights @ origin, means.present)


def shrink(covariance: Tensor, n: float, shrinkage: Shrinkage) -> Tensor:
    """Return ``(1 − s)·Σ + s·tr(Σ)/d·I``.

    Args:
        covariance: ``Σ``, ``(d, d)``.
        shrinkage: ``s``, or ``oas``: the oracle approximating shrinkage, which needs nothing but Σ and n.
    """
    variance = covariance.diagonal().mean().clamp(min=0)
    s = oracle(covariance, n) if shrinkage == "oas" else float(shrinkage)
    mixed = (1 - s) * covariance
    mixed.diagonal().add_(s * variance)
    return mixed


def oracle(covariance: Tensor, n: float) -> float:
    """Return the oracle approximating shrinkage (Chen et al., Eq. 23, as scikit-learn has it)."""
    d = len(covariance)
    mean_square, square = float(covariance.square().mean()), float(covariance.diagonal().mean()) ** 2
    apart = (n + 1) * (mean_square - square / d)
    return min(1.0, (mean_square + square) / apart) if apart > 0 else 1.0
