"""FedSA: against a naive reference, its first anchors, and clients of one class."""

from __future__ import annotations

import pytest
import torch

import naive
from naive import build, same, same_nets, uneven
from protofed.compute.seeding import generator
from protofed.errors import ConfigError
from protofed.methods import Batch
from protofed.prototypes.table import Prototypes
from support import K, client, degenerate, federated, visited

PULL, CONTRAST, CALIBRATION, MU = 0.7, 0.4, 0.3, 0.9
CHOSEN = {
    "method__lambda": PULL,
    "method__contrast": CONTRAST,
    "method__calibration": CALIBRATION,
    "method__momentum": MU,
    "method__prototypes": "after",
}


def length(v):
    return (v @ v).sqrt()


def gap(rows):
    """Mean over the rows of the distance to the nearest other."""
    if len(rows) < 2:
        return -float("inf")
    nearest = [min(float(length(a - b)) for j, b in enumerate(rows) if j != i) for i, a in enumerate(rows)]
    return sum(nearest) / len(nearest)


def loss(w, batch, anchors, delta):
    """``CE + λ·MSE(f, a_y) + CE(−(D + δ·1), y) + mean_c CE(g(a_c), c)``, weighted."""
    total = []
    for x, y in batch:
        f = naive.features(w, x)
        pull = sum((f[i] - anchors[y][i]) ** 2 for i in range(len(f))) / len(f)
        apart = torch.stack([-length(f - a) - (delta if c == y else 0.0) for c, a in enumerate(anchors)])
        total.append(
            naive.cross_entropy(naive.head(w, f), y) + PULL * pull + CONTRAST * naive.cross_entropy(apart, y)
        )
    heads = naive.mean([naive.cross_entropy(naive.head(w, a), c) for c, a in enumerate(anchors)])
    return naive.mean(total) + CALIBRATION * heads


def test_three_rounds():
    data = uneven()
    federation = build("fedsa", data, rounds=3, **CHOSEN)
    own = {c.name: naive.own_net(federation, c.name) for c in data.clients}
    anchors = list(federation.server["prototypes"].clone())
    kept = {c.name: [] for c in data.clients}
    for number, record in enumerate(federation.run(), start=1):
        sent = {y: [] for y in range(K)}
        for c in data.clients:
            delta = max(gap(kept[c.name]), gap(anchors), 0.0)
            for batch in naive.rounds_of(c.train, c.name, number):
                (own[c.name],), _ = naive.step(
                    [own[c.name]], lambda n, batch=batch, a=anchors, m=delta: loss(n[0], batch, a, m)
                )
            same_nets(naive.own_net(federation, c.name), own[c.name])
            assert float(visited(federation)[c.name].state["gap"]) == pytest.approx(delta)
            f = [naive.features(own[c.name], x.double()) for x in c.train.x]
            kept[c.name] = []
            for y in sorted(set(c.train.y.tolist())):
                mean = naive.mean([a for a, b in zip(f, c.train.y.tolist(), strict=True) if b == y])
                kept[c.name].append(mean)
                sent[y].append(mean)
        anchors = [MU * a + (1 - MU) * naive.mean(sent[y]) if sent[y] else a for y, a in enumerate(anchors)]
        for y, a in enumerate(anchors):
            same(federation.server["prototypes"][y], a)
        hits = []
        for c in data.clients:
            found = [naive.features(own[c.name], x.double()) for x in c.test.x]
            guesses = [min(range(K), key=lambda y, f=f: float(length(f - anchors[y]))) for f in found]
            hits.append(sum(a == b for a, b in zip(guesses, c.test.y.tolist(), strict=True)) / len(c.test))
        assert record.accuracy.clients["global"] == hits
        assert record.parameters["down"] == 3 * K * naive.D


def test_the_first_anchors():
    """``ReLU(BN(W₂·ReLU(BN(W₁·z))))`` by torch's own layers, whose weights are drawn in the same order."""
    federation = build("fedsa")
    source, d = generator(naive.SEED, "anchors"), naive.D
    rows = torch.randn(K, d, generator=source, dtype=torch.float64)
    for _ in range(2):
        linear, norm = torch.nn.Linear(d, d).double(), torch.nn.BatchNorm1d(d).double()
        with torch.no_grad():
            linear.weight.uniform_(-(d**-0.5), d**-0.5, generator=source)
            linear.bias.uniform_(-(d**-0.5), d**-0.5, generator=source)
            rows = norm(linear(rows)).relu()
    same(federation.server["prototypes"], rows)
    assert bool(federation.server["present"].all())


def test_a_class_that_nobody_reports_keeps_its_anchor():
    data = federated(client("ann", [0, 0, 1]), client("bob", [1, 1]))
    federation = build("fedsa", data, rounds=1)
    before = federation.server["prototypes"].clone()
    list(federation.run())
    after = federation.server["prototypes"]
    assert torch.equal(after[2:], before[2:])
    assert not torch.equal(after[:2], before[:2])


def test_clients_of_one_class_take_the_anchors_margin():
    federation = build("fedsa", degenerate(), rounds=2)
    records = list(federation.run())
    assert all(value is not None for record in records for value in record.losses.values())
    anchors = Prototypes.of(visited(federation)["one-class"].received)
    assert float(visited(federation)["one-class"].state["gap"]) == pytest.approx(gap(list(anchors.rows)), rel=1e-4)


def test_without_anchors_it_is_cross_entropy():
    federation, alone = build("fedsa", **CHOSEN), build("local")
    for name in federation.names:
        c = visited(federation)[name]
        batch = Batch(c.train.x.double(), c.train.y)
        nothing = federation.method.receive(c, None)
        terms, _ = federation.method.loss(c.model, batch, nothing, c.state)
        expected, _ = alone.method.loss(c.model, batch, {}, {})
        same(sum(terms.values()), sum(expected.values()))


def test_bad_options():
    with pytest.raises(ConfigError, match="classes"):
        build("fedsa", method__classes="own")
    with pytest.raises(ConfigError, match=r"momentum must lie in \[0, 1\]"):
        build("fedsa", method__momentum=1.5)
