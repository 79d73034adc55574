"""privacy.mode=client under secure aggregation: clients clip themselves, and each adds a share of the noise."""

from __future__ import annotations

import math

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st

from protofed.compute.seeding import derive
from protofed.errors import ConfigError, PayloadError
from protofed.methods.contract import Task
from protofed.stages.privacy import ClientPrivacy, PrivacyOptions
from protofed.stages.privacy.accounting import ORDERS
from protofed.stages.privacy.clients import NoisySums, noise_of
from protofed.stages.privacy.noise import COARSEST, FINEST, NO_NOISE, OwnNoise
from protofed.stages.secure.stage import SecureSum
from stages.privacy.everywhere import everywhere
from stages.privacy.test_clients import Mixed, upload
from support import build, few, one_line, stage, uploads

UNIT = 2.0**24
SECURE = {
    "secure__aggregation": True,
    "privacy__mode": "client",
    "privacy__noise": 0.5,
    "privacy__accountant": "rdp",
}


def sums(clip: float) -> NoisySums:
    return NoisySums(PrivacyOptions("client", clip, 0.5), Mixed(None, Task(4, 3, 1, 0, 5)), [1.0], 24)


def signed(vector) -> torch.Tensor:
    return torch.from_numpy(vector.view(np.int64).copy()).double()


# The noise.


@pytest.mark.parametrize("rates", [[1.0], [0.25] * 40])
def test_the_noise_of_a_secret_sum_is_what_the_budget_needs_for_its_rounds(rates):
    """Of a budget, the noise follows from how many rounds there are and how many clients take part."""
    options = PrivacyOptions("client", 2.0, None, 4.0)
    found = NoisySums(options, Mixed(None, Task(4, 3, 1, 0, 5)), rates, 24)
    assert found.noise.deviation == noise_of(options, rates) * 2.0 * UNIT
    assert noise_of(options, [1.0]) != noise_of(options, [0.25] * 40)


@pytest.mark.parametrize(("threshold", "colluders", "arrived"), [(5, 1, 5), (7, 2, 9), (3, 0, 3)])
def test_shares_of_the_fewest_honest_clients_have_the_declared_variance(threshold, colluders, arrived):
    """``Var(Σ_{i ≤ t−a} n_i) = σ²``; of all ``m`` that arrive, ``m/(t − a)·σ²``."""
    sigma, n = 2.0**20, 40_000
    each = [signed(OwnNoise(sigma, colluders, seed).draw(threshold, n)) for seed in range(11, 11 + arrived)]
    honest = threshold - colluders
    for number in (honest, arrived):
        total = torch.stack(each[:number]).sum(0) / sigma
        # A variance of n normal numbers has a standard error of √(2/n) = 0.7 %.
        assert float(total.var()) == pytest.approx(number / honest, rel=0.03)
        assert abs(float(total.mean())) < 4 * math.sqrt(number / honest / n)
        assert float((total**4).mean() / total.var() ** 2) == pytest.approx(3, abs=0.12)
    pairs = torch.corrcoef(torch.stack(each)) - torch.eye(arrived, dtype=torch.float64)
    assert float(pairs.abs().max()) < 0.03


def test_noise_repeats_with_a_seed_and_not_without():
    drawn = [OwnNoise(1e6, 0, seed).draw(3, 50) for seed in (4, 4, 5, -1, -1)]
    assert np.array_equal(drawn[0], drawn[1])
    assert not any(np.array_equal(a, b) for a, b in ((drawn[1], drawn[2]), (drawn[3], drawn[4])))
    assert not NO_NOISE.draw(3, 9).any()
    assert OwnNoise.of(OwnNoise(1.5, 2, 2**62).to_bytes()) == OwnNoise(1.5, 2, 2**62)


@pytest.mark.parametrize(
    ("noise", "match"),
    [
        (OwnNoise(1e6, 3), r"of 3 clients, 3 might collude \(privacy.colluders\)"),
        (OwnNoise(FINEST, 1), "raise secure.fraction_bits"),
        (OwnNoise(COARSEST * 2, 1), "lower secure.fraction_bits"),
    ],
)
def test_noise_that_whole_numbers_cannot_hold_or_nobody_adds_is_refused(noise, match):
    with one_line(PayloadError, match):
        noise.share(3)


# The norm.

rows = st.dictionaries(st.integers(0, 3), st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3))


@given(rows, rows, st.floats(-1e8, 1e8), st.floats(1e-2, 1e3))
def test_rounded_contributions_are_no_longer_than_the_clip(mine, centre, weight, clip):
    """The sensitivity of the integer sum: rounding to the nearest would exceed ``C`` by up to ``√n/2`` steps."""
    stage = sums(clip=clip)
    payload, origin = upload("me", mine, weight).payload, upload("", centre).payload
    vector = signed(stage.encode(payload, origin))
    assert float(vector.norm()) <= clip * UNIT * (1 + 1e-12)
    exact, _ = stage.layout.clip_upload(payload, origin)
    assert float((vector - exact * UNIT).abs().max()) < 1


# The sum.


@few("method", ["fedavg", "fedproto"], 1)
def test_a_round_is_that_of_clipped_contributions_and_shares(method):
    """``w ← w + (Σ ⌊clip(w_i − w, C)·2^f⌋ + Σ n_i)/2^f/m``, written down naively."""
    chosen = {**SECURE, "privacy__clip": 0.3, "rounds": 1}
    federation = build(method, **chosen)
    noisy = stage(federation, SecureSum).noisy
    opening = federation.open(federation.names, 1).payload or {}
    total = torch.zeros(noisy.length, dtype=torch.float64)
    for one in uploads(build(method, **chosen)):
        exact = noisy.layout.vector(one.payload, opening)
        exact = exact * min(1, 0.3 / float(exact.norm()))
        # Three clients, all needed, of which one might collude: each adds σ/√2.
        seed = derive(0, "privacy", one.client, 1)
        noise = torch.randn(len(exact), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        total += (exact * UNIT).trunc() / UNIT + (0.5 * 0.3 * UNIT / math.sqrt(2) * noise).round() / UNIT
    deviation = 0.5 * 0.3 * math.sqrt(3 / 2)
    (record,) = federation.run()
    assert not record.robust.kept
    expected = stage(federation, ClientPrivacy).layout.upload(total, deviation, opening, 3.0)
    found = build(method, **chosen)
    given, kept = [], found.method.aggregate
    found.method.aggregate = lambda server, them, round_number: kept(
        server, iter(given.extend(them) or given), round_number
    )
    list(found.run())
    (only,) = given
    for name, tensor in expected.items():
        torch.testing.assert_close(only.payload[name].double(), tensor.double(), rtol=1e-6, atol=1e-7)


def test_without_noise_the_numbers_are_those_of_clipping_at_the_server():
    """To the fixed-point step, also of the second round, whose broadcast clients and server read alike."""
    found = []
    for secure in (False, True):
        federation = build("fedproto", **SECURE | {"privacy__noise": 0, "secure__aggregation": secure})
        list(federation.run())
        found.append(federation.server)
    for name, tensor in found[0].items():
        torch.testing.assert_close(found[1][name], tensor, rtol=0, atol=1e-5)


def test_executors_add_the_same_noise_and_runs_cost_what_the_record_says():
    expected = None
    for federation, records in everywhere("fedproto", participation__sampling="poisson", **SECURE):
        costs, server = [r.privacy for r in records], federation.server
        expected = expected or (costs, server)
        assert costs == expected[0]
        for name, tensor in expected[1].items():
            torch.testing.assert_close(server[name], tensor, rtol=1e-3, atol=1e-4)
    for number, cost in enumerate(costs, start=1):
        # Clients know who takes part, so nothing is amplified; noise beyond that of t − a clients is not counted.
        accountant = RdpAccountant(ORDERS).compose(dp_accounting.GaussianDpEvent(cost.noise), number)
        assert cost.epsilon == pytest.approx(accountant.get_epsilon(cost.delta))
        assert (cost.rate, cost.noise, cost.clip, cost.clipped) == (1.0, 0.5, 1.0, 0)
    (note,) = stage(federation, ClientPrivacy).note()
    assert note == (
        "Differential privacy of clients: changes of norm at most 1, noise of 0.5 times that on their sum, of "
        f"which each client adds a share, ε = {costs[-1].epsilon:.3g} at δ = {costs[-1].delta:g} after all rounds "
        "for runs with and without one client, without amplification: clients of a round know each other."
    )


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        ({"privacy__colluders": 3}, "of 3 clients, 3 might collude"),
        ({"privacy__noise": 1e-5, "secure__fraction_bits": 8}, "raise secure.fraction_bits"),
        ({"privacy__clip": 1e13}, r"privacy.clip=1e\+13 might overflow the sum of 3 clients: lower"),
        ({"privacy__epsilon": 0.1}, "less than one round costs"),
        ({"robust__rule": "clip"}, "robust.rule=clip does not go with secure.aggregation=true"),
    ],
)
def test_what_cannot_be_protected_is_refused_before_training(overrides, match):
    with one_line(ConfigError, match):
        build("fedproto", **SECURE | overrides)
