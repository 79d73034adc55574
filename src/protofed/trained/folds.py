"""Closed forms judged by folds at each site: every sample is left out once in each of several draws.

A fold of a site is left out of its own sums, and nothing else changes: the others' sums are what they are, and the
site chooses its mixture by leave-one-out among its other folds. Sums are differences, so no fold costs a pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from torch import Tensor

from protofed.compute import numerics
from protofed.methods import Sums, own_classes, within
from protofed.methods.fedlda import FedLDAOptions
from protofed.methods.parts.gaussian import Mix, Pools, choose, discriminant
from protofed.prototypes.inference import most_likely
from protofed.samples import ClientData, FederatedData

FOLDS = 10
DRAWS = 3  #: Draws of folds, so that their luck does not count
MANY = 24  #: Sites beyond which there is one draw
Hits = NDArray[np.float64]  #: ``(draws, n)`` of 0 and 1: which of a site's judged samples are classified rightly


class SiteSamples(NamedTuple):
    """The samples of a site."""

    name: str
    x: Tensor  #: ``(n, …)``
    y: Tensor  #: ``(n,)`` int64
    folds: Tensor  #: ``(draws, n)`` int64 in which fold a sample is judged; -1 for those that never are
    shared: Tensor  #: ``(n,)`` bool, those of which the others learn
    views: int = 1  #: Number of equally long features side by side

    @property
    def judged(self) -> Tensor:
        """Which samples are judged, ``(n,)`` bool."""
        return self.folds[0] >= 0

    def flat(self) -> SiteSamples:
        """Return them as vectors in float64."""
        return self._replace(x=self.x.flatten(1).double())

    def parts(self) -> Iterator[tuple[int, int, Tensor]]:
        """Yield each draw and fold with the samples that it leaves out, ``(n,)`` bool."""
        for draw, folds in enumerate(self.folds):
            for fold in folds[folds >= 0].unique().tolist():
                yield draw, fold, folds == fold


def divide(client: ClientData, draws: int, seed: int, *, given: bool) -> SiteSamples:
    """Return the samples of a client with folds that have equal shares of each class.

    A sample that is the only one of its class is never judged: without it, the site does not know the class.

    Args:
        given: Its test samples were set aside by others, and are the only fold.
    """
    every = (client.train, None if given else client.validation, client.test)
    parts = [part for part in every if part is not None and len(part)]
    y = torch.cat([part.y for part in parts]).cpu() if parts else client.train.y
    x = torch.cat([part.x.cpu() for part in parts]) if parts else client.train.x
    n = len(y)
    if given:
        tested = torch.arange(n) >= n - len(client.test)
        return SiteSamples(client.name, x, y, torch.where(tested, 0, -1).unsqueeze(0), ~tested)
    several, folds = y.bincount()[y] > 1, torch.full((draws, n), -1)
    for draw in range(draws):
        drawing = np.random.default_rng([seed, draw])
        order = torch.from_numpy(drawing.permutation(n))
        order = order[y[order].argsort(stable=True)]
        order = order[several[order]]
        folds[draw, order] = (torch.arange(len(order)) + int(drawing.integers(FOLDS))) % FOLDS
    return SiteSamples(client.name, x, y, folds, torch.ones(n, dtype=torch.bool))


def divide_all(data: FederatedData, seed: int, *, given: bool) -> list[SiteSamples]:
    """Return the samples of all clients with their folds."""
    draws = DRAWS if len(data.clients) <= MANY else 1
    views = data.table.views if data.table else 1
    return [divide(client, draws, seed, given=given)._replace(views=views) for client in data.clients]


class Judged(NamedTuple):
    """The right answers of closed forms, by site."""

    alone: list[Hits]  #: Of the site's own samples
    together: list[Hits]  #: Of its mixture


def judge(sites: Sequence[SiteSamples], classes: int, options: FedLDAOptions) -> Judged:
    """Return the right answers of the closed forms, on fixed features, for samples that they have not seen."""
    sites = [site.flat() for site in sites]
    d, views = sites[0].x.shape[1], sites[0].views
    none = Sums.none(classes, d, second=True)
    sums = [_sums(site, site.shared, classes) for site in sites]
    total = reduce(Sums.plus, sums, none)
    scatters = [part.scatter for part in sums]
    scatter = reduce(torch.add, scatters, none.moment)
    parts = [(place, *part) for place, site in enumerate(sites) for part in site.parts()]

    def answered(part: tuple[int, int, int, Tensor]) -> list[Tensor]:
        place, _, _, out = part
        site = sites[place]
        rest = ~out if bool(site.shared.all()) else site.shared
        own = _sums(site, rest, classes)
        others, around = total.plus(sums[place], -1.0), scatter - scatters[place]
        pairs = Pools.alone(own, views), Pools(own, others, around, views)
        return [_answers(pools, site.x[rest], site.y[rest], site.x[out], options) for pools in pairs]

    found = Judged(*([np.zeros((len(site.folds), len(site.y))) for site in sites] for _ in Judged._fields))
    with ThreadPoolExecutor(numerics.cores(), initializer=_single) as pool:
        for (place, draw, _, out), given in zip(parts, pool.map(answered, parts), strict=True):
            for right, labels in zip(found, given, strict=True):
                right[place][draw, out] = labels == sites[place].y[out]
    return Judged(*(_of_judged(sites, each) for each in found))


def judge_anywhere(sites: Sequence[SiteSamples], classes: int, options: FedLDAOptions) -> list[Hits]:
    """Return the right answers among all classes of one classifier, without a fold of every site at a time."""
    sites = [site.flat() for site in sites]
    views, none = sites[0].views, Sums.none(classes, sites[0].x.shape[1], second=True)
    total = reduce(Sums.plus, (_sums(site, site.shared, classes) for site in sites), none)
    left: dict[tuple[int, int], Sums] = {}
    for site in sites:
        for draw, fold, out in site.parts():
            left[draw, fold] = left.get((draw, fold), none).plus(_sums(site, out & site.shared, classes))
    rules = {}
    for key, part in left.items():
        outside = total.plus(part, -1.0).view(0, views)
        rules[key] = discriminant(outside, options.first, torch.float32).beside(0, views)
    found = [np.zeros((len(site.folds), len(site.y))) for site in sites]
    for site, right in zip(sites, found, strict=True):
        for draw, fold, out in site.parts():
            right[draw, out] = most_likely(rules[draw, fold].scores(site.x[out])) == site.y[out]
    return _of_judged(sites, found)


def _single() -> None:
    """Let this thread compute by itself."""
    torch.get_num_threads()  # which is set at a thread's first look
    threadpool_limits(1)


def _of_judged(sites: Sequence[SiteSamples], found: Sequence[Hits]) -> list[Hits]:
    return [right[:, site.judged.numpy()] for site, right in zip(sites, found, strict=True)]


def _sums(site: SiteSamples, rows: Tensor, classes: int) -> Sums:
    return Sums.of(site.x[rows], site.y[rows], classes, second=True)


def _answers(pools: Pools, x: Tensor, y: Tensor, test: Tensor, options: FedLDAOptions) -> Tensor:
    """Return the classes that the mixture gives which a client's own samples choose, among its classes."""
    mixture = Mix(1.0, None, options.first)
    if options.personal or not len(pools.others.counts.nonzero()):
        mixture = choose(pools, x, y, options.shrinkages, torch.float32).mixture
    linear = pools.classifier(mixture, torch.float32)
    state = own_classes(pools.own.counts, torch.float64, balanced=True)
    return most_likely(within(linear.scores(test) + state["prior"], linear.present, state["own"]))
