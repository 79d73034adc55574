"""ε of several releases, and the noise that a budget needs, against the accountant itself and plain bisection."""

from __future__ import annotations

import math

import dp_accounting
import pytest
from dp_accounting import pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.stages.privacy.accounting import ORDERS, PRECISION, Release, epsilon, find_noise
from support import few

DELTA = 1e-5


def composed(releases: list[Release], delta: float) -> float:
    """ε by composing event after event."""
    accountant = rdp.RdpAccountant(ORDERS)
    for release in releases:
        event = dp_accounting.GaussianDpEvent(release.noise)
        if release.rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(release.rate, event)
        for _ in range(release.times):
            accountant.compose(event)
    return accountant.get_epsilon(delta)


def bisected(releases, budget: float) -> float:
    """The noise by nothing but halving."""
    low, high = 0.0, 1.0
    while epsilon(releases(high), DELTA) > budget:
        low, high = high, 2 * high
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon(releases(middle), DELTA) > budget else (low, middle)
    return high


def test_releases_add_up():
    releases = [Release(1.5, 0.1, 7), Release(3.0, 1.0, 2), Release(1.5, 0.1, 3), Release(2.0, 0.5, 1)]
    assert epsilon(releases, DELTA) == pytest.approx(composed(releases, DELTA), rel=1e-12)
    assert epsilon([Release(1.0, 0.0, 5), Release(1.0, 0.5, 0)], DELTA) == 0
    assert epsilon([Release(0.0, 0.5), Release(1.0)], DELTA) == math.inf


@pytest.mark.slow
@settings(max_examples=12)
@given(
    rate=st.one_of(st.just(1.0), st.floats(0.01, 0.9)),
    times=st.integers(1, 2000),
    logarithm=st.floats(-1.5, 1.5),
    ratio=st.floats(0.5, 3),
    again=st.integers(0, 20),
)
def test_the_noise_is_that_of_halving(rate, times, logarithm, ratio, again):
    def releases(noise: float) -> list[Release]:
        return [Release(noise, rate, times), Release(ratio * noise, 1.0, again)]

    budget = 10**logarithm
    noise = find_noise(releases, budget, DELTA)
    assert noise == bisected(releases, budget)
    assert epsilon(releases(noise), DELTA) <= budget < epsilon(releases(noise * (1 - 2 * PRECISION)), DELTA)


@pytest.mark.slow
@few(
    "releases",
    [
        [Release(1.0, 0.1, 150)],
        [Release(5.0, 1.0, 30)],
        [Release(1.3, 0.1, 300), Release(6.5, 1.0, 31)],
        [Release(22.0, 1.0, 30)],
    ],
    1,
)
def test_the_other_accountant_is_that_of_dp_accounting_and_proves_8_to_17_percent_less(releases):
    accountant = pld.PLDAccountant(value_discretization_interval=1e-4)
    for release in releases:
        event = dp_accounting.GaussianDpEvent(release.noise)
        event = dp_accounting.PoissonSampledDpEvent(release.rate, event) if release.rate < 1 else event
        accountant.compose(event, release.times)
    tight, found = accountant.get_epsilon(DELTA), epsilon(releases, DELTA, "pld")
    assert tight * (1 - 1e-6) <= found <= tight * 1.005
    assert 0.83 < found / epsilon(releases, DELTA) < 0.93


@pytest.mark.slow
@few("budget", [1e-2, 1.0, 8.0, 100.0], 1)
def test_less_noise_keeps_a_budget_by_the_tight_accountant(budget):
    def releases(noise: float) -> list[Release]:
        return [Release(noise, 0.2, 100), Release(5 * noise, 1.0, 11)]

    noise = find_noise(releases, budget, DELTA, "pld")
    assert epsilon(releases(noise), DELTA, "pld") <= budget * (1 + 1e-3)
    assert noise <= find_noise(releases, budget, DELTA)


@pytest.mark.slow
def test_hardly_any_noise_or_hardly_any_sampling_does_not_take_forever():
    assert epsilon([Release(1e-3, 1.0, 100)], DELTA, "pld") == epsilon([Release(1e-3, 1.0, 100)], DELTA)
    assert epsilon([Release(0.5, 1e-9, 2)], DELTA, "pld") <= 1e-3
    assert epsilon([Release(0.0)], DELTA, "pld") == math.inf
