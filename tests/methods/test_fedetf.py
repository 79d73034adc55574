"""FedETF: against a naive reference."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import naive
from naive import build, same, same_nets, uneven
from protofed.prototypes.etf import spread_directions
from support import K, visited

BETA = 3.0


def logits(w, x, v):
    """``β·⟨P f/‖P f‖, v_c⟩`` of one sample."""
    extractor, (P, b, beta) = w[:2], w[2:]
    f = naive.features(extractor, x)
    g = torch.stack([P[i] @ f + b[i] for i in range(len(b))])
    g = g / (g @ g).sqrt()
    return torch.stack([beta * (g @ v[c]) for c in range(K)])


def loss(w, batch, v, counts):
    """Cross-entropy of the logits plus ``log n_c``, where n_c of an absent class is 1."""
    counts = [max(count, 1) for count in counts]
    total = []
    for x, y in batch:
        z = logits(w, x, v)
        total.append(naive.cross_entropy(torch.stack([z[c] + math.log(counts[c]) for c in range(K)]), y))
    return naive.mean(total)


def test_two_rounds():
    data = uneven()
    federation = build("fedetf", data, method__scale=BETA)
    v = spread_directions(K, naive.D, naive.SEED, dtype=torch.float64)
    names = list(federation.server)
    assert [n.split(".")[-1] for n in names[2:]] == ["weight", "bias", "beta"]
    weights = [t.clone() for t in federation.server.values()]
    same(weights[4], torch.tensor(BETA, dtype=torch.float64))
    for number, record in enumerate(federation.run(), start=1):
        sent = {}
        for c in data.clients:
            w, counts = weights, torch.bincount(c.train.y, minlength=K).tolist()
            for batch in naive.rounds_of(c.train, c.name, number):
                (w,), _ = naive.step([w], lambda n, b=batch, held=counts: loss(n[0], b, v, held))
            sent[c.name] = w
        n = sum(len(c.train) for c in data.clients)
        weights = [sum(len(c.train) * sent[c.name][i] for c in data.clients) / n for i in range(5)]
        same_nets(list(federation.server.values()), weights)
        for rule, nets in (("global_model", dict.fromkeys(sent, weights)), ("head", sent)):
            hits = [
                sum(
                    int(logits(nets[c.name], x.double(), v).argmax()) == int(y)
                    for x, y in zip(c.test.x, c.test.y, strict=True)
                )
                / len(c.test)
                for c in data.clients
            ]
            assert record.accuracy.clients[rule] == hits, rule


def test_directions_are_equally_far_apart_and_never_move():
    federation = build("fedetf", rounds=2)
    v = federation.method.directions
    cosines = v @ v.T
    same(cosines, torch.full((K, K), -1 / (K - 1), dtype=torch.float64).fill_diagonal_(1.0))
    list(federation.run())
    for c in visited(federation).values():
        assert torch.equal(c.model.extras["etf"].directions, v)
    assert not any("directions" in name for name in federation.server)


def test_the_models_own_head_takes_no_part():
    federation = build("fedetf", rounds=1)
    before = {n: c.model.head.weight.clone() for n, c in visited(federation).items()}
    list(federation.run())
    assert all(torch.equal(c.model.head.weight, before[n]) for n, c in visited(federation).items())


@pytest.fixture(scope="module")
def plain():
    """A federation whose features are the samples themselves."""
    return build("fedetf", model__name="identity", model__options={}, method__scale=BETA)


@given(seed=st.integers(0, 2**31), n=st.integers(1, 5), scale=st.sampled_from([0.0, 1e-3, 1e3]))
def test_outputs_see_directions_alone(plain, seed, n, scale):
    """They are at most β and add up to 0; gradients are finite where the projection is 0."""
    source, head = torch.Generator().manual_seed(seed), visited(plain)["ann"].model.extras["etf"]
    x = torch.randn(n, 6, generator=source, dtype=torch.float64)
    before = head(x).detach()
    with torch.no_grad():
        head.weight.mul_(scale)
        head.bias.mul_(scale)
    found = head(x)
    same(found.detach(), before if scale else torch.zeros_like(before))
    same(before.sum(-1), torch.zeros(n, dtype=torch.float64))
    assert float(before.abs().max()) <= BETA * (1 + 1e-9)
    found.logsumexp(-1).sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in head.parameters())
