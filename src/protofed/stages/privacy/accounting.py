"""ε(δ) of Gaussian mechanisms, by the accountants of Google's ``dp-accounting``.

Two data sets are neighbours if one record of the one is replaced by a null record in the other, which contributes
zero to every sum (zero-out adjacency; Ponomareva et al., "How to DP-fy ML", JAIR 2023, Sec. 2.1). How many records
there are is public. A record is a training sample of one client (``privacy.mode=sample``) or the contributions of
one client to all rounds (``mode=client``). Hence the sensitivity of a sum is the largest norm of what one record
adds to it, sums are divided by public numbers alone, and ε is that of adding or removing a record. Exchanging one
record for another moves a sum twice as far; as a removal and an addition it is (2ε, (1 + e^ε)·δ)-private.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache, reduce
from typing import Any, Literal, NamedTuple

from protofed.errors import ConfigError

Accountant = Literal["pld", "rdp"]
"""Privacy loss distributions (Doroshenko et al. 2022), which are tight; or Rényi differential privacy."""
LARGEST = 1e6  #: Largest noise multiplier that is tried
PRECISION = 1e-3  #: Relative precision of the noise found for a budget
ORDERS = (1.5, 2.5, 3.5, *range(2, 65), 80, 96, 128, 192, 256, 512, 1024)
"""Orders of the Rényi divergence that are tried; those between whole numbers take a hundred times as long."""

RESOLUTION = 1e-3  #: Largest step of discretised privacy losses, as a share of ε
FINEST = 1e-6  #: Least step of discretised privacy losses
LEAST_NOISE, MOST_SIGNAL = 0.3, 400.0
"""Least noise multiplier, and largest ``Σ (q/z)²``, for which the distribution of the privacy loss is computed:
beyond, ε says little, and the distribution is wide."""


class Release(NamedTuple):
    """Numbers that were published: a sum of vectors of bounded norm, and Gaussian noise."""

    noise: float  # noise multiplier ``z``: standard deviation of the noise over the largest norm of one vector
    #: Probability ``q`` with which each vector is drawn into the sum, independently (Poisson sampling); 1 if the
    #: sum is not of a secret random choice
    rate: float = 1.0
    times: int = 1


def epsilon(releases: Iterable[Release], delta: float, accountant: Accountant = "rdp") -> float:
    """Return an ε for which all releases together are (ε, δ)-differentially private.

    Both accountants return an upper bound. That of ``rdp`` is by Mironov (2017), Mironov, Talwar and Zhang (2019)
    for sampled sums, and Canonne, Kamath and Steinke (2020) for δ. That of ``pld`` is usually 8 to 10 % smaller;
    privacy losses are discretised pessimistically.

    Args:
        accountant: ``rdp`` takes the place of ``pld`` where there is hardly any noise.
    """
    counted: dict[tuple[float, float], int] = {}
    for noise, rate, times in releases:
        if rate and times:
            counted[noise, rate] = counted.get((noise, rate), 0) + times
    if not counted:
        return 0.0
    if any(noise == 0 for noise, _ in counted):
        return math.inf
    signal = sum(times * (rate / noise) ** 2 for (noise, rate), times in counted.items())
    if accountant == "pld" and signal <= MOST_SIGNAL and min(noise for noise, _ in counted) >= LEAST_NOISE:
        # A power of two near a share of ε, as the central limit theorem estimates it, so that losses are cached.
        rough = signal / 2 + math.sqrt(2 * signal * math.log(1 / delta))
        step = 2.0 ** math.floor(math.log2(max(RESOLUTION * rough, FINEST)))
        losses = [_losses(*release, step).self_compose(times) for release, times in sorted(counted.items())]
        return float(reduce(lambda a, b: a.compose(b), losses).get_epsilon_for_delta(delta))
    divergences = sum(times * _divergences(*release) for release, times in sorted(counted.items()))
    return float(_library()[1].compute_epsilon(ORDERS, divergences, delta)[0])


@lru_cache(maxsize=256)
def _losses(noise: float, rate: float, step: float) -> Any:
    """Return the distribution of the privacy loss of one release, in multiples of ``step``."""
    _library()
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(
        noise, value_discretization_interval=step, sampling_prob=rate
    )


@cache
def _divergences(noise: float, rate: float) -> Any:
    """Return the Rényi divergence of one release, of shape (ORDERS,); those of several add up."""
    dp, rdp = _library()
    accountant = rdp.RdpAccountant(ORDERS, neighboring_relation=dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    mechanism = dp.GaussianDpEvent(noise)
    accountant.compose(mechanism if rate == 1 else dp.PoissonSampledDpEvent(rate, mechanism))
    return accountant.rdp


def find_noise(
    releases: Callable[[float], Sequence[Release]], budget: float, delta: float, accountant: Accountant = "rdp"
) -> float:
    """Return the smallest noise multiplier, within :data:`PRECISION`, whose releases keep a budget.

    Args:
        releases: Planned releases for a noise multiplier.
        budget: Largest ``ε``; may be infinite.
    """
    if math.isinf(budget) or not any(release.rate and release.times for release in releases(1.0)):
        return 0.0
    known: dict[float, float] = {}

    def cost(noise: float) -> float:
        if noise not in known:
            known[noise] = epsilon(releases(noise), delta, accountant)
        return known[noise]

    low, high = 0.0, 1.0
    while cost(high) > budget:
        if high > LARGEST:
            raise ConfigError(f"privacy.epsilon={budget:g}: no noise keeps this budget at privacy.delta={delta:g}")
        low, high = high, 2 * high
    _narrow(cost, high, budget)
    # More noise never costs more, so that most of these steps are decided by what is known.
    dear = max((noise for noise, found in known.items() if found > budget), default=0.0)
    enough = min(noise for noise, found in known.items() if found <= budget)
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        if middle <= dear or (middle < enough and cost(middle) > budget):
            low = middle
        else:
            high = middle
    return high


def _narrow(cost: Callable[[float], float], enough: float, budget: float) -> None:
    """Ask for the cost of noise just below and just above that which a budget needs.

    In logarithms ε is nearly a straight line, so that Brent's method needs few questions where halving needs ten.
    """
    from scipy.optimize import brentq

    while cost(enough / 2) <= budget:
        enough /= 2
        if enough < PRECISION:
            return
    if not 0 < cost(enough) <= cost(enough / 2) < math.inf:
        return

    def excess(logarithm: float) -> float:
        return math.log(cost(2**logarithm) / budget)

    # Powers of two, whose cost is known, stay what they are.
    found = 2 ** brentq(excess, math.log2(enough / 2), math.log2(enough), xtol=PRECISION / 8, rtol=PRECISION / 8)
    for noise in (found * (1 - PRECISION / 4), found * (1 + PRECISION / 4)):
        cost(noise)


def _library() -> tuple[Any, Any]:
    try:
        import dp_accounting
        from dp_accounting import rdp
    except ImportError:
        raise ConfigError(
            "privacy.mode needs the package dp-accounting: install protofed[privacy], or choose privacy.noise=0"
        ) from None
    # It warns of every order of the Rényi divergence that it leaves out, which makes ε no smaller.
    logging.getLogger("absl").setLevel(logging.ERROR)
    return dp_accounting, rdp
