"""Learning curves before joining: accuracy against samples, of a site alone and with a part of the others'."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from protofed.methods import Sums, own_classes, within
from protofed.methods.parts.gaussian import Shrinkage, discriminant
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


def curves(data: FederatedData, shrinkage: Shrinkage, seed: int) -> list[Curves]:
    """Return the curves of each site, by closed forms of nested subsamples.

    Args:
        data: Fixed features.
    """
    K, d = data.num_classes, int(np.prod(data.input_shape))
    orders = [
        torch.from_numpy(np.random.default_rng([seed, place]).permutation(len(client.train)))
        for place, client in enumerate(data.clients)
    ]

    def sums(place: int, share: float) -> Sums:
        train = data.clients[place].train
        chosen = orders[place][: int(np.ceil(share * len(train)))]
        return Sums.of(train.x[chosen].flatten(1), train.y[chosen], K, second=True)

    none = Sums.none(K, d, second=True)
    totals = [reduce(Sums.plus, (sums(i, share) for i in range(len(orders))), none) for share in SHARES]
    found = []
    for place, client in enumerate(data.clients):
        parts = [sums(place, share) for share in SHARES]
        whole = parts[-1]
        joined = [total.plus(part, -1.0).plus(whole) for total, part in zip(totals, parts, strict=True)]
        found.append(
            Curves(
                tuple(_accuracy(part, part.counts, client.test, shrinkage) for part in parts),
                tuple(_accuracy(total, whole.counts, client.test, shrinkage) for total in joined),
            )
        )
    return found


def _accuracy(total: Sums, counts: Tensor, test: Samples, shrinkage: Shrinkage) -> float:
    """Return the accuracy of the discriminant of some samples over the classes of a client with ``counts``."""
    if not len(test):
        return float("nan")
    linear = discriminant(total, shrinkage, torch.float32)
    state = own_classes(counts, torch.float64, balanced=True)
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
