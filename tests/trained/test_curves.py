"""Learning curves before joining."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protofed.methods.fedlda import FedLDAOptions
from protofed.samples import ClientData, Samples
from protofed.trained.curves import (
    FAR,
    Curves,
    curves,
    extrapolation_error,
    fit_power_law,
    multiple,
    solve_multiple,
)
from protofed.trained.folds import SHARES, _order, divide, judge

K, D = 3, 4


def points(n, seed):
    drawing = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % K
    return Samples(torch.nn.functional.one_hot(y, D).float() + torch.randn(n, D, generator=drawing), y)


def naive(x, y, own, test, shrinkage=0.1):
    """Return the accuracy of a linear discriminant, as textbooks have it, with the class frequencies of ``own``."""
    means = {k: x[y == k].mean(0) for k in np.unique(y)}
    centred = x - np.stack([means[k] for k in y])
    covariance = centred.T @ centred / len(x)
    covariance = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / D * np.eye(D)
    scores = np.full((len(test), K), -np.inf)
    for k in np.unique(own):
        w = np.linalg.solve(covariance, means[k])
        prior = ((own == k).sum() + 1) / (len(own) + K)
        scores[:, k] = test.x.numpy() @ w - w @ means[k] / 2 + np.log(prior)
    return (scores.argmax(1) == test.y.numpy()).mean()


def test_curves_are_discriminants_of_nested_subsamples():
    clients = [ClientData(name, points(n, n), points(50, n + 1)) for name, n in (("a", 60), ("b", 90))]
    sites = [divide(client, 1, 5, given=True) for client in clients]
    options = FedLDAOptions(shrinkage=0.1, personal=False)
    found = curves(sites, K, options, judge(sites, K, options), range(2))
    for place, line in enumerate(found[:2]):
        for at, share in enumerate(SHARES):
            held = []
            for site in sites:
                rows = site.shared & (_order(site) < share)
                held.append((site.x[rows].numpy(), site.y[rows].numpy()))
            own = held[place][1]
            assert line.alone[at] == pytest.approx(naive(*held[place], own, clients[place].test))
            held[place] = (clients[place].train.x.numpy(), clients[place].train.y.numpy())
            x, y = map(np.concatenate, zip(*held, strict=True))
            assert line.together[at] == pytest.approx(naive(x, y, held[place][1], clients[place].test))
    assert found[2].alone == pytest.approx(np.mean([line.alone for line in found[:2]], axis=0))


def test_a_gain_is_told_as_a_multiple_of_samples_only_where_the_curve_tells():
    law = tuple(1 - 0.12 * share**-0.5 for share in SHARES)
    steep, level = (Curves(line, (0.9,) * 4) for line in ((0.3, 0.4, 0.6, 0.8), law))
    assert np.isnan(solve_multiple(steep)), "through half of the samples it misses the rest by far"
    assert solve_multiple(level) == pytest.approx(1.44)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    a=st.floats(0.7, 1.0),
    b=st.floats(0.02, 0.2),
    c=st.sampled_from([0.3, 0.5, 1.0]),
    times=st.floats(1.0, 0.9 * FAR),
)
def test_a_power_law_is_found_and_extended(a, b, c, times):
    values = [a - b * share**-c for share in SHARES]
    assert fit_power_law(SHARES, values) == pytest.approx((a, b, c), abs=1e-6)
    assert extrapolation_error(SHARES, values) == pytest.approx(0, abs=1e-6)
    assert multiple(values, a - b * times**-c) == pytest.approx(times, rel=1e-3)
    assert multiple(values, a + 0.01) == float("inf")


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.floats(0, 1), min_size=4, max_size=4), st.floats(0, 1))
def test_any_curve_gives_a_multiple_of_at_least_one(values, target):
    a, b, _ = fit_power_law(SHARES, values)
    assert a <= 1
    assert b >= 0
    assert 1 <= multiple(values, target) <= FAR or multiple(values, target) == float("inf")
