"""FedPFT: against a naive reference, with either covariance, and what a server makes of strange mixtures."""

from __future__ import annotations

import math

import pytest
import torch

import naive
from naive import SEED, build, uneven
from protofed.compute.seeding import generator
from protofed.errors import ModelError
from protofed.methods import Upload, fedpft
from protofed.methods.parts.training import linear_layer
from support import K, few

D, RATE, EPOCHS, SIZE = naive.D, 0.05, 3, 5
CHOSEN = {"method__server_lr": RATE, "method__server_epochs": EPOCHS, "method__server_batch_size": SIZE}
FLOOR = 1e-6


def moments(rows, kind):
    """Return the mean of rows and the standard deviations around it."""
    n, mean = len(rows), naive.mean(rows)
    apart = [r - mean for r in rows]
    variances = [sum(float(a[i]) ** 2 for a in apart) / n for i in range(D)]
    if kind == "spherical":
        variances = [sum(variances) / D] * D
    return mean, torch.tensor([max(v, FLOOR) for v in variances], dtype=mean.dtype).sqrt()


def adamw(w, m, v, g, t):
    """One step with torch's usual settings: decay 0.01, β = 0.9 and 0.999, ε = 1e-8."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    step = (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
    return w * (1 - RATE * 0.01) - RATE * step, m, v


@few("kind", ["spherical", "diag"], 2)
def test_a_round(kind):
    data = uneven()
    federation = build("fedpft", data, method__covariance=kind, **CHOSEN)
    drawn = []
    for c in data.clients:
        f = [naive.features(naive.own_net(federation, c.name), x.double()) for x in c.train.x]
        source = generator(SEED, "features", c.name)
        for y in sorted(set(c.train.y.tolist())):
            own = [a for a, b in zip(f, c.train.y.tolist(), strict=True) if b == y]
            mean, deviations = moments(own, kind)
            torch.rand(len(own), generator=source, dtype=torch.float64)
            noise = torch.randn(len(own), D, generator=source, dtype=torch.float64)
            drawn += [(mean + deviations * e, y) for e in noise]
    record, again = federation.run()
    assert again.accuracy.clients == record.accuracy.clients  # a second round changes nothing
    start = linear_layer(D, K, generator(SEED, "head"), torch.float64)
    w = [start["weight"], start["bias"]]
    m, v, t = [torch.zeros_like(p) for p in w], [torch.zeros_like(p) for p in w], 0
    order = generator(SEED, "server training")
    for _ in range(EPOCHS):
        rows = torch.randperm(len(drawn), generator=order).tolist()
        for first in range(0, len(rows), SIZE):
            batch, t = [drawn[i] for i in rows[first : first + SIZE]], t + 1
            leaf = [p.clone().requires_grad_() for p in w]
            loss = naive.mean([naive.cross_entropy(naive.head(leaf, f), y) for f, y in batch])
            slopes = torch.autograd.grad(loss, leaf)
            w, m, v = zip(*(adamw(*part, t) for part in zip(w, m, v, slopes, strict=True)), strict=True)
    torch.testing.assert_close(federation.server["weight"], w[0], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(federation.server["bias"], w[1], rtol=1e-6, atol=1e-8)
    assert record.diagnostics["drawn_features"] == len(drawn)
    width = {"spherical": 1, "diag": D}[kind]
    held = sum(len(set(c.train.y.tolist())) for c in data.clients)
    assert record.parameters["up"] == held * (1 + D + width)
    everywhere, among_own = [], []
    for c in data.clients:
        own = set(c.train.y.tolist())
        z = [naive.head(w, naive.features(naive.own_net(federation, c.name), x.double())) for x in c.test.x]
        labels = c.test.y.tolist()
        everywhere.append(sum(int(a.argmax()) == y for a, y in zip(z, labels, strict=True)) / len(labels))
        guesses = [max(own, key=lambda y, a=a: float(a[y])) for a in z]
        among_own.append(sum(a == b for a, b in zip(guesses, labels, strict=True)) / len(labels))
    assert record.accuracy.clients["global_model"] == everywhere
    assert record.accuracy.clients["head"] == among_own


def test_counts_draw_no_more_than_a_bound_and_empty_mixtures_nothing(monkeypatch):
    monkeypatch.setattr(fedpft, "MOST_SAMPLES", 12)
    federation = build("fedpft")
    sent = {
        "classes": torch.tensor([0, 3]),
        "counts": torch.tensor([4_000_000_000, 4_000_000_000]),
        "weights": torch.tensor([[1.0], [0.0]]).double(),
        "means": torch.zeros(2, 1, D, dtype=torch.float64),
        "scales": torch.ones(2, 1, 1, dtype=torch.float64),
    }
    assert federation.method.draw("ann", sent)[1].tolist() == [0] * 12


def test_a_head_that_diverges_is_not_kept():
    federation = build("fedpft", **CHOSEN)
    sent = {
        "classes": torch.tensor([0]),
        "counts": torch.tensor([3]),
        "weights": torch.ones(1, 1, dtype=torch.float64),
        "means": torch.full((1, 1, D), math.inf, dtype=torch.float64),
        "scales": torch.ones(1, 1, 1, dtype=torch.float64),
    }
    before = dict(federation.server)
    state, told = federation.method.aggregate(before, iter([Upload("ann", sent)]), 1)
    assert told == {"head_diverged": True}
    assert state is before


def test_a_later_round_sends_the_mixtures_of_the_first():
    federation = build("fedpft", uneven(), rounds=3, method__components=3, **CHOSEN)
    losses = [record.diagnostics["head_loss_last"] for record in federation.run()]
    assert losses == losses[:1] * 3


def test_no_bias():
    model = build("fedpft").method.task.template()
    model.head.bias = None
    with pytest.raises(ModelError, match="fedpft shares a head with a bias, but this model's head has none"):
        build("fedpft").method.extend(model)
