"""The rule ``clip`` for sums of closed forms: no client moves them further than samples like the others' would.

What is compared is Mahalanobis' distance. Its metric has the directions of all scatter together, and in those where
some clients have more than most, the variance of the median client. In its widest direction, a scatter of ν degrees
of freedom of Gaussian samples has about ``(√ν + √d)²`` times that variance (Davidson and Szarek, 2001); a client's
may have ``robust.norm`` times as much of this as the median client has. A class mean of n samples may be as far
from the median of its class as ``robust.distance·√(3/2·d/n + T)``: the median of few means is uncertain itself, and
T is the median of what squared distances are longer than by chance.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from protofed.methods import ClosedForm, Sums
from protofed.methods.contract import Upload
from protofed.methods.parts.gaussian import shrink
from protofed.methods.parts.moments import floor
from protofed.runs.findings import Findings
from protofed.stages.robust.clipping import Proportions, Spool, too_long
from protofed.stages.robust.options import RobustOptions
from protofed.stages.robust.rules import median
from protofed.stages.robust.vectors import LEAST

CENTRE = 1.5  #: Variance of the distance between a mean and the median of few, in units of the mean's own


class Received(NamedTuple):
    """The uploads of a round that count."""

    spool: Spool
    method: ClosedForm[Any]
    left_out: Collection[str]

    def uploads(self) -> Iterator[Upload]:
        """Yield the uploads."""
        return (upload for upload in self.spool if upload.client not in self.left_out)

    def parts(self) -> Iterator[Sums]:
        """Yield their sums."""
        return (self.method.part(upload.payload) for upload in self.uploads())


class Metric(NamedTuple):
    """A metric in which the median client has unit variance in every direction."""

    white: Tensor  # ``(d, d)``, from features to coordinates
    back: Tensor  # its inverse

    def scatter(self, part: Sums) -> Tensor:
        """Return a client's scatter in these coordinates."""
        white = self.white @ part.scatter @ self.white.mT
        return (white + white.mT) / 2

    def widest(self, received: Received) -> float:
        """Return the variance of the median client in its widest direction, as a multiple of Gaussian samples'."""
        each = [
            float(torch.linalg.eigvalsh(self.scatter(p))[-1]) / expect_variance(p)
            for p in received.parts()
            if free(p)
        ]
        return float(torch.tensor(each).median()) if len(each) >= LEAST else float("inf")

    @classmethod
    def of(cls, received: Received) -> Metric:
        """Return the metric of a round's uploads."""
        d, freedom, square = received.method.task.feature_dim, 0.0, 0.0
        eye = torch.eye(d, dtype=torch.float64)
        if not received.method.second:
            return cls(eye, eye)
        together = torch.zeros(d, d, dtype=torch.float64)
        for part in received.parts():
            together += part.scatter
            freedom += free(part)
            square = max(square, part.square)
        sigma = shrink(together / max(freedom, 1.0), max(freedom, 1.0), "oas")
        values, vectors = torch.linalg.eigh(sigma)
        deviations = values.clamp(min=floor(square, received.method.task.dtype)).sqrt()
        lower, inverse = vectors * deviations, (vectors / deviations).mT
        squares = torch.zeros_like(together)
        for part in received.parts():
            own = inverse @ part.scatter @ inverse.mT / expect_variance(part)
            squares += own @ own
        vectors = torch.linalg.eigh(squares).eigenvectors
        axes = vectors.mT @ inverse
        spread = [
            (axes @ part.scatter * axes).sum(1) / (freedom * (1 - 2 / (9 * freedom)) ** 3)  # Wilson and Hilferty
            for part in received.parts()
            if (freedom := free(part))
        ]
        if len(spread) < LEAST:
            return cls(axes, lower @ vectors)
        middle = torch.stack(spread).median(0).values
        deviation = middle.clamp(min=max(0.01 * float(middle.median()), 1e-12)).sqrt()
        return cls(axes / deviation.unsqueeze(1), lower @ vectors * deviation)


def free(part: Sums) -> float:
    """Return the degrees of freedom of a client's scatter."""
    return float((part.counts - 1).clamp(min=0).sum())


def expect_variance(part: Sums) -> float:
    """Return the variance of a scatter of Gaussian samples in its widest direction, in units of a sample's."""
    return float((free(part) ** 0.5 + part.sums.shape[1] ** 0.5) ** 2)


class Centres(NamedTuple):
    """Class means of a round in the metric."""

    centres: Tensor  # ``(K, d)`` median of each class
    known: Tensor  # ``(K,)`` bool, classes that enough clients report
    middle: Tensor  # ``(d,)`` median of the centres, from which others are measured
    longest: float  # largest distance of one from it, beside what chance adds
    chance: float  # variance of a sample, summed over directions
    apart: float  # T
    alone: list[int]  # classes that one client reports

    @classmethod
    def of(cls, received: Received, metric: Metric, options: RobustOptions) -> Centres:
        """Return those of a round's uploads."""
        K, d = received.method.task.num_classes, received.method.task.feature_dim
        found = [(part.means.rows @ metric.white.mT, part.counts) for part in received.parts()]
        rows, counts = (torch.stack([each[i] for each in found]) for i in (0, 1))
        held = counts > 0
        known = held.sum(0) >= LEAST
        centres = torch.zeros(K, d, dtype=torch.float64)
        for k in held.any(0).nonzero().squeeze(-1).tolist():
            centres[k] = median(rows[held[:, k], k])
        middle = median(centres[known if bool(known.any()) else held.any(0)])
        longest = options.norm * float((rows[held] - middle).norm(dim=1).median())
        compared = held & known
        squares = (rows - centres).square().sum(-1)[compared]
        n = counts[compared]
        chance = CENTRE * d if received.method.second else float((squares * n).median()) if len(n) else 0.0
        apart = float((squares - chance / n).median().clamp(min=0)) if len(n) else 0.0
        alone = (held.sum(0) == 1).nonzero().squeeze(-1).tolist()
        return cls(centres, known, middle, longest, chance, apart, alone)


def bound_sums(
    uploads: Iterator[Upload],
    method: ClosedForm[Any],
    measured: Proportions,
    options: RobustOptions,
    findings: Findings,
) -> Iterator[Upload]:
    """Shorten class means and scatter of uploads to the round's limits; ``measured`` collects their lengths."""
    spool = Spool()
    for upload in uploads:
        spool.append(upload)
        measured.add(upload)
    received = Received(spool, method, too_long(measured, options, findings))
    if len(spool) - len(received.left_out) < LEAST:
        yield from received.uploads()
        return
    metric = Metric.of(received)
    rows = Centres.of(received, metric, options)
    findings.alone = rows.alone
    most = options.norm * metric.widest(received) if method.second else float("inf")
    for upload in received.uploads():
        part = method.part(upload.payload)
        means, factors = near(part, rows, metric, options)
        scatter, factor = narrow(part, metric, most) if method.second else (part.moment, 1.0)
        factors = torch.cat([factors, factors.new_tensor([factor])])
        if bool((factors >= 1).all()):
            yield upload
            continue
        findings.shortened(upload.client, int((factors < 1).sum()), float(factors.min()))
        sums = means * part.counts.unsqueeze(-1)
        moment = scatter + means.mT @ sums if method.second else part.moment
        yield Upload(upload.client, method.repack(upload.payload, Sums(part.counts, sums, moment)))


def near(part: Sums, rows: Centres, metric: Metric, options: RobustOptions) -> tuple[Tensor, Tensor]:
    """Return class means within their limits, ``(K, d)``, and the factors of their distances, ``(K,)``."""
    means, held = part.means.rows, part.counts > 0
    white = means @ metric.white.mT
    radius = options.distance * (rows.chance / part.counts.clamp(min=1) + rows.apart).sqrt()
    centres = torch.where(rows.known.unsqueeze(-1), rows.centres, rows.middle)
    limits = torch.where(rows.known, radius, rows.longest + radius)
    lengths = (white - centres).norm(dim=1)
    factors = torch.where(held & (lengths > limits), limits / lengths, 1.0)
    inside = (centres + factors.unsqueeze(-1) * (white - centres)) @ metric.back.mT
    return torch.where((factors < 1).unsqueeze(-1), inside, means), factors


def narrow(part: Sums, metric: Metric, most: float) -> tuple[Tensor, float]:
    """Return a scatter within its limits, and the least factor of its variances."""
    limit, white = most * expect_variance(part), metric.scatter(part)
    if float(torch.linalg.eigvalsh(white)[-1]) <= limit:
        return part.scatter, 1.0
    values, vectors = torch.linalg.eigh(white)
    wide = metric.back @ vectors
    return (wide * values.clamp(max=limit)) @ wide.mT, limit / float(values[-1])
