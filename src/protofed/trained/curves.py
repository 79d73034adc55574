"""Learning curves before joining: accuracy against samples, of a site alone and with a part of the others'."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch

from protofed.methods import Sums, own_classes, within
from protofed.methods.fedlda import FedLDAOptions
from protofed.methods.parts.gaussian import Mix, Pools, choose
from protofed.prototypes.inference import most_likely
from protofed.samples import FederatedData, Samples

SHARES = (0.125, 0.25, 0.5, 1.0)
"""Shares of a site's samples, and of the others', of which curves are computed."""
EXPONENTS = np.linspace(0.1, 1.0, 10)
"""Exponents ``c`` among which the least squares choose."""
FAR = 10.0
"""Multiple of a site's samples beyond which no number is given."""


class Curves(NamedTuple):
    """Accuracy on a site's own test samples at each of :data:`SHARES`; NaN without test samples.

    Attributes:
        alone: With a share of its own samples.
        together: With all of its own and a share of the others'.
    """

    alone: tuple[float, ...]
    together: tuple[float, ...]


def curves(data: FederatedData, options: FedLDAOptions, seed: int) -> list[Curves]:
    """Return the curves of each site, by closed forms of nested subsamples.

    Args:
        data: Fixed features.
        options: Of the method that answers with everybody's.
    """
    K, d, views = data.num_classes, int(np.prod(data.input_shape)), data.table.views if data.table else 1
    orders = [
        torch.from_numpy(np.random.default_rng([seed, place]).permutation(len(client.train)))
        for place, client in enumerate(data.clients)
    ]

    def part(place: int, share: float) -> Samples:
        train = data.clients[place].train
        chosen = orders[place][: int(np.ceil(share * len(train)))].sort().values
        return Samples(train.x[chosen].flatten(1).double(), train.y[chosen])

    none = Sums.none(K, d, second=True)
    found: dict[float, list[tuple[Samples, Sums]]] = {}
    totals, scatter = {}, {}
    for share in SHARES:
        parts = [part(place, share) for place in range(len(orders))]
        found[share] = [(own, Sums.of(own.x, own.y, K, second=True)) for own in parts]
        totals[share] = reduce(Sums.plus, (sums for _, sums in found[share]), none)
        scatter[share] = reduce(torch.add, (sums.scatter for _, sums in found[share]), none.moment)
    result = []
    for place, client in enumerate(data.clients):
        samples, whole = found[SHARES[-1]][place]
        alone, together = [], []
        for share in SHARES:
            own, sums = found[share][place]
            alone.append(_accuracy(Pools.alone(sums, views), own, client.test, options))
            pools = Pools(whole, totals[share].plus(sums, -1.0), scatter[share] - sums.scatter, views)
            together.append(_accuracy(pools, samples, client.test, options))
        result.append(Curves(tuple(alone), tuple(together)))
    return result


def _accuracy(pools: Pools, own: Samples, test: Samples, options: FedLDAOptions) -> float:
    """Return the accuracy of the mixture that a client's own samples choose, over its classes."""
    if not len(test):
        return float("nan")
    mixture = Mix(1.0, None, options.first)
    if options.personal or not len(pools.others.counts.nonzero()):
        mixture = choose(pools, own.x, own.y, options.shrinkages, torch.float32).mixture
    linear = pools.classifier(mixture, torch.float32)
    state = own_classes(pools.own.counts, torch.float64, balanced=True)
    scores = linear.scores(test.x.flatten(1).double()) + state["prior"]
    return float((most_likely(within(scores, linear.present, state["own"])) == test.y).double().mean())


def fitted(shares: Sequence[float], values: Sequence[float]) -> tuple[float, float, float]:
    """Return ``a``, ``b``, ``c`` of the power law ``a − b·s^−c`` by least squares, with ``a ≤ 1``, ``b ≥ 0``."""
    s, y = np.asarray(shares), np.asarray(values)
    found = []
    for c in EXPONENTS:
        x = s**-c
        b = max(0.0, -float(np.polyfit(x, y, 1)[0]))
        a = float(np.mean(y + b * x))
        if a > 1:
            a, b = 1.0, max(0.0, float(((1 - y) * x).sum() / (x * x).sum()))
        found.append((float(np.square(a - b * x - y).sum()), a, b, float(c)))
    return min(found)[1:]


def missed(shares: Sequence[float], values: Sequence[float]) -> float:
    """Return the error for the last value of the curve through all the others."""
    a, b, c = fitted(shares[:-1], values[:-1])
    return float(a - b * shares[-1] ** -c - values[-1])


def multiple(values: Sequence[float], target: float) -> float:
    """Return the multiple of samples for an accuracy, by the fitted curve; infinite beyond :data:`FAR`."""
    a, b, c = fitted(SHARES, values)
    if a <= target:
        return float("inf")
    times = max(1.0, float((b / (a - target)) ** (1 / c)))
    return times if times <= FAR else float("inf")
