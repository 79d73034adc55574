"""One noisy release of the closed forms: its sensitivity, its noise, its ε, and what the server makes of it."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("dp_accounting", reason="uv pip install '.[privacy]'")

from protofed.compute.seeding import generator
from protofed.errors import ConfigError
from protofed.methods.parts.moments import Sums
from protofed.rounds.loop import Federation
from protofed.rounds.stage import Opened
from protofed.samples import ClientData, FederatedData, Samples
from protofed.stages.privacy import SamplePrivacy
from protofed.stages.privacy.accounting import Release, epsilon
from protofed.stages.secure.stage import SecureSum
from protofed.visits.private import Noise, Private, private_statistics
from stages.privacy.auditing import lower_bound
from support import build, few, one_line, stage, uploads

K, D = 4, 6
NAMES = ("ann", "bob", "cid", "dan")
PRIVATE = {"model__name": "identity", "model__options": {}, "encoder__name": "identity", "encoder__unit": True}
PRIVATE |= {"privacy__mode": "sample", "robust__rule": "none", "rounds": 1, "execution__executor": "sequential"}
FACTORS = {"fedncm": math.sqrt(1.25), "fed3r": 1.5, "fedlda": 1.5}


def holder(name: str, n: int, seed: int, *more: tuple[torch.Tensor, int]) -> ClientData:
    g = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % K
    x = F.normalize(2 * torch.eye(K, D)[y] + torch.randn(n, D, generator=g), dim=1)
    for sample, label in more:
        x, y = torch.cat([x, sample[None]]), torch.cat([y, torch.tensor([label])])
    own = Samples(x, y)
    return ClientData(name, own, own, None, {})


def everybody(n: int = 40) -> FederatedData:
    return FederatedData(tuple(holder(m, n, i) for i, m in enumerate(NAMES)), K, tuple("abcd"), (D,))


def made(method: str = "fedlda", data: FederatedData | None = None, **chosen: object) -> Federation:
    wanted = {} if {"privacy__noise", "privacy__epsilon"} & chosen.keys() else {"privacy__epsilon": 2.0}
    return build(method, data or everybody(), **{**PRIVATE, **wanted, **chosen})


def vector(payload: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([payload[name].double().flatten() for name in sorted(payload)])


# Sensitivity.


@few("secret", [False, True], 1)
@pytest.mark.parametrize("method", FACTORS)
def test_one_sample_changes_an_upload_by_the_norm_of_the_factors(method, secret, monkeypatch):
    """Whatever the features' length, and at length 1 by no less."""
    federation = made(method, privacy__noise=0.0)
    trainer, roster = federation.executor.trainer, federation.executor.clients
    local = trainer.open(roster, "ann", 1)
    samples = roster["ann"].train
    wild = samples.x * torch.logspace(-3, 4, len(samples))[:, None]
    wild[3] = torch.nan
    monkeypatch.setattr(Noise, "add", lambda self, total, deviation: total)
    private = Private(1.0, 0.0, 0.3, 1e-9, secret=secret)

    def sent(rows: list[int]) -> torch.Tensor:
        part = Samples(wild[rows], samples.y[rows])
        found = private_statistics(local.model, federation.method, local, part, private)
        return vector(federation.method.upload(local, found))

    everything = list(range(len(samples)))
    whole = sent(everything)
    assert bool(whole.isfinite().all())
    changes = [float((whole - sent([r for r in everything if r != row])).norm()) for row in everything]
    assert max(changes) == pytest.approx(FACTORS[method], rel=1e-6)
    assert max(changes) <= FACTORS[method] * (1 + 1e-9)


@few("secure", [False, True], 1)
@few("method", FACTORS, 1)
def test_the_noise_is_that_multiple_in_every_number_that_is_sent(method, secure):
    """Of one upload, or of the sum of all: 3 of 4 vectors suffice to read it, of which one might have no noise."""
    z = 3.0
    chosen = {"secure__aggregation": secure, "privacy__means": 1.0}
    exact = vector(uploads(made(method, privacy__noise=0.0))[0].payload)
    found = []
    for seed in range(20):
        federation = made(method, privacy__noise=z, seed=seed, **chosen)
        sent = uploads(federation)
        if secure:
            secret = stage(federation, SecureSum)
            assert secret.threshold(len(sent)) == 3
            parts = [vector(one.payload) for one in secret.shown(sent, Opened(1, {}, None), seed)]
            found.append(torch.stack(parts).sum(0) - torch.stack([vector(u.payload) for u in sent]).sum(0))
        else:
            found.append(vector(sent[0].payload) - exact)
    noise = torch.stack(found)
    expected = z * FACTORS[method] * (math.sqrt(4 / 2) if secure else 1)
    assert float(noise.std()) == pytest.approx(expected, rel=0.05)
    assert noise.std(0).amin() > 0.4 * expected
    assert noise.std(0).amax() < 1.7 * expected
    assert abs(float(noise.mean())) < 0.1 * expected


# What it costs.


@few("accountant", ["pld", "rdp"], 1)
@few("rounds", [1, 3], 1)
def test_rounds_cost_nothing_more_and_send_the_same(rounds, accountant):
    federation = made(rounds=rounds, privacy__accountant=accountant)
    records = list(federation.run())
    for record in records:
        spent = record.privacy
        assert spent.means == 1
        assert spent.epsilon <= 2.0
        assert spent.epsilon == pytest.approx(
            epsilon([Release(spent.means_noise, 1.0, 1)], 1e-5, accountant), rel=1e-3
        )
    (note,) = stage(federation, SamplePrivacy).note()
    assert note.startswith("Differential privacy of samples: one release, with noise of")
    held = {n: t for n, t in federation.server.items() if "." in n}
    again = {f"{n}.{u.client}/0": t for u in uploads(federation, rounds + 1) for n, t in u.payload.items()}
    assert held.keys() == again.keys()
    assert all(torch.equal(held[name], again[name]) for name in held)


def test_at_a_node_a_release_is_drawn_once_from_the_system():
    federation = made()
    federation.executor.trainer.__dict__["secret"] = True
    first, second = (uploads(federation, round_number) for round_number in (1, 2))
    other = made()
    other.executor.trainer.__dict__["secret"] = True
    third = uploads(other)
    for one, same, drawn in zip(first, second, third, strict=True):
        assert torch.equal(vector(one.payload), vector(same.payload))
        assert not torch.equal(vector(one.payload), vector(drawn.payload))


# What the server makes of it.


@few("method", FACTORS, 1)
@pytest.mark.parametrize("secure", [False, True])
def test_without_noise_it_is_the_ordinary_classifier(method, secure):
    precise = {"execution__precision": "fp64", "wire__codec": "float64"}
    if secure:
        precise |= {"secure__aggregation": True, "secure__fraction_bits": 36}
    private, plain = (
        made(method, privacy__epsilon=math.inf, **precise),
        build(method, everybody(), **{n: v for n, v in {**PRIVATE, **precise}.items() if n != "privacy__mode"}),
    )
    for federation in (private, plain):
        assert not next(iter(federation.run())).robust.kept
    for name in ("weights", "bias", "present"):
        assert torch.allclose(private.server[name], plain.server[name], atol=1e-6)


@pytest.mark.slow
@few("budget", [0.01, 1.0, 8.0], 1)
@few("method", FACTORS, 1)
def test_noise_of_any_size_leaves_a_classifier_or_none(method, budget):
    for n in (1, 5, 400):
        federation = made(method, everybody(n), privacy__epsilon=budget)
        (record,) = federation.run()
        assert all(bool(t.isfinite().all()) for t in federation.server.values())
        if n == 400 and budget == 8:
            assert record.accuracy.weighted["head"] > 0.8
        if budget == 0.01:
            assert not federation.server["present"].any()


def test_noise_is_taken_for_no_class_and_for_no_variance():
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(D, D, generator=g, dtype=torch.float64) * 50
    sums = Sums(
        torch.tensor([100.0, -30.0, 19.0, 21.0], dtype=torch.float64),
        torch.ones(K, D, dtype=torch.float64),
        noise + noise.mT,
    )
    found = sums.remove_noise(5.0)  # of the counts: 10
    assert found.counts.tolist() == [100, 0, 0, 21]
    assert not found.sums[1:3].any()
    assert float(torch.linalg.eigvalsh(found.scatter).amin()) == pytest.approx(5 * math.sqrt(D / 2))
    assert torch.linalg.eigvalsh(sums.scatter).amin() < 0


# What it does not cover.


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("fedlda", {"encoder__unit": False}, "must have a length of at most 1: set encoder.unit=true"),
        ("fedlda", {"method__centre": True}, "set method.centre=false"),
        ("fedlda", {"secure__aggregation": True, "rounds": 2}, "covers one round of fedlda"),
        ("fedlda", {"secure__aggregation": True, "privacy__colluders": 3}, "no noise is sure"),
        ("fedlda", {"evaluation__patience": 1}, "does not cover evaluation.patience"),
        ("fedlda", {"privacy__mode": "client"}, "its server needs n_ik"),
        ("fedcof", {}, "compares the means of single clients"),
    ],
)
def test_what_one_release_does_not_cover_is_refused_in_one_line(method, options, message):
    with one_line(ConfigError, message):
        list(made(method, **options).run())


def test_a_control_sends_nothing_and_needs_no_noise():
    (record,) = made("local_lda", encoder__unit=False).run()
    assert record.accuracy.weighted["head"] > 0.8
    assert record.bytes["up"] == 0


# A canary (see test_canaries.py).


def audit(length: float, clipped: bool, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return the ε that an attacker proves who knows everything but whether each client has the canary."""
    present = torch.rand(60, generator=generator(5, "coins")) < 0.5
    canary = length * F.normalize(torch.ones(D), dim=0), 0
    clients = [holder(f"c{i:02}", 60, i, *([canary] if there else [])) for i, there in enumerate(present.tolist())]
    data = FederatedData(tuple(clients), K, tuple("abcd"), (D,))
    with monkeypatch.context() as patch:
        if not clipped:
            patch.setattr(
                torch.Tensor,
                "clamp",
                lambda self, *a, **k: torch.ones_like(self) if k == {"max": 1} else _clamp(self, *a, **k),
            )
        sent = uploads(made("fedlda", data, privacy__epsilon=1.0))
    known = uploads(made("fedlda", data, privacy__noise=0.0))
    alone = build(
        "fedlda",
        FederatedData((holder("c", 1, 0, canary),), K, tuple("abcd"), (D,)),
        **{**PRIVATE, "privacy__noise": 0.0},
    )
    empty = build(
        "fedlda", FederatedData((holder("c", 1, 0),), K, tuple("abcd"), (D,)), **{**PRIVATE, "privacy__noise": 0.0}
    )
    mark = vector(uploads(alone)[0].payload) - vector(uploads(empty)[0].payload)
    scores = []
    for noisy, exact, there in zip(sent, known, present.tolist(), strict=True):
        without = vector(exact.payload) - (mark if there else 0)
        scores.append((vector(noisy.payload) - without) @ mark)
    return lower_bound(torch.stack(scores), present, 1e-5, len(present))


_clamp = torch.Tensor.clamp


@pytest.mark.slow
def test_a_canary_is_not_found_and_would_be_without_clipping(monkeypatch):
    assert audit(1.0, True, monkeypatch) < 1
    assert audit(1e6, True, monkeypatch) < 1
    assert audit(1e6, False, monkeypatch) > 1
