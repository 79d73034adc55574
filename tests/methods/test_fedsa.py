"""FedSA: against a naive reference, its first anchors, and clients of one class."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import naive
from naive import build, same, same_nets, uneven
from protofed.compute.seeding import generator
from protofed.methods import Batch, fedsa
from protofed.methods.contract import Upload
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


@pytest.mark.parametrize("nearest", ["anchors", "means"])
def test_three_rounds(nearest):
    data = uneven()
    federation = build("fedsa", data, rounds=3, method__nearest=nearest, **CHOSEN)
    own = {c.name: naive.own_net(federation, c.name) for c in data.clients}
    anchors = list(federation.server["prototypes"].clone())
    kept = {c.name: [] for c in data.clients}
    means = {}
    for number, record in enumerate(federation.run(), start=1):
        sent = {y: [] for y in range(K)}
        down = K + len(means) * (nearest == "means")
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
        means |= {y: naive.mean(rows) for y, rows in sent.items() if rows}
        for y, a in enumerate(anchors):
            same(federation.server["prototypes"][y], a)
        table = means if nearest == "means" else dict(enumerate(anchors))
        hits = []
        for c in data.clients:
            found = [naive.features(own[c.name], x.double()) for x in c.test.x]
            guesses = [min(table, key=lambda y, f=f, t=table: float(length(f - t[y]))) for f in found]
            hits.append(sum(a == b for a, b in zip(guesses, c.test.y.tolist(), strict=True)) / len(c.test))
        assert record.accuracy.clients["global"] == hits
        assert record.parameters["down"] == 3 * down * naive.D
    assert federation.method.declared.down == ("2·K·d" if nearest == "means" else "K·d")


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


def test_means_may_be_divided_once_more_by_the_number_of_reporters():
    data = federated(client("ann", [0, 0, 1]), client("bob", [0, 0, 1]))
    server, momentum = {}, fedsa.FedSAOptions.momentum
    for aggregation in ("mean", "paper"):
        federation = build("fedsa", data, rounds=1, method__aggregation=aggregation)
        before = federation.server["prototypes"].clone()
        list(federation.run())
        server[aggregation] = (federation.server["prototypes"] - momentum * before)[:2]
    same(server["paper"], server["mean"] / 2)


def test_means_of_classes_that_somebody_reported_are_sent():
    data = federated(client("ann", [0, 0, 1]), client("bob", [1, 1]))
    federation = build("fedsa", data, rounds=2, method__nearest="means")
    list(federation.run())
    message = federation.method.broadcast(federation.server, 3)
    assert message["reported"].tolist() == [0, 1]
    assert federation.server["reported"].tolist() == [True, True] + [False] * (K - 2)
    assert not federation.server["means"][2:].any()


def test_the_mean_of_a_class_stays_until_somebody_reports_it_again():
    method, server = (f := build("fedsa", method__nearest="means", method__gamma=3.0)).method, f.server
    told = {}
    for number, classes in enumerate([[0, 1], [1, 2]], start=1):
        rows = torch.full((2, naive.D), float(number))
        upload = Upload("ann", {"classes": torch.tensor(classes), "prototypes": rows})
        server = method.aggregate(server, [upload], number).state
        told |= dict.fromkeys(classes, float(number))
    received = method.receive(SimpleNamespace(), method.broadcast(server, 3))
    assert received["reported"].tolist() == [y in told for y in range(K)]
    assert received["means"].mean(1).tolist() == [told.get(y, 0.0) for y in range(K)]
    same(received["prototypes"], 3 * server["prototypes"])


def test_clients_of_one_class_take_the_anchors_margin():
    federation = build("fedsa", degenerate(), rounds=2)
    records = list(federation.run())
    assert all(value is not None for record in records for value in record.losses.values())
    anchors = Prototypes.of(visited(federation)["one-class"].received)
    assert float(visited(federation)["one-class"].state["gap"]) == pytest.approx(gap(list(anchors.rows)), rel=1e-4)


@pytest.fixture(scope="module")
def plain():
    """A federation whose features are the samples themselves."""
    return build("fedsa", model__name="identity", model__options={})


@given(seed=st.integers(0, 2**31), scale=st.sampled_from([0.0, 1.0]))
def test_samples_on_their_anchors_have_finite_gradients(plain, seed, scale):
    source, c = torch.Generator().manual_seed(seed), visited(plain)["ann"]
    anchors = scale * torch.randn(K, 6, generator=source, dtype=torch.float64)
    y = torch.randint(0, K, (3,), generator=source)
    x = anchors[y].requires_grad_()
    received = Prototypes(anchors, torch.ones(K, dtype=torch.bool)).tensors()
    terms, _ = plain.method.loss(c.model, Batch(x, y), received, c.state)
    sum(terms.values()).backward()
    assert bool(x.grad.isfinite().all())
