"""Balanced softmax of private heads, against a naive reference in double precision."""

from __future__ import annotations

import math

import pytest
import torch

import naive
import naive_beacon
from naive import build, same_nets
from protofed.methods import Batch, predict
from protofed.prototypes.etf import spread_directions
from support import K, client, degenerate, federated, few, visited

LAMBDA, GAMMA = 0.7, 3.0


def two():
    """Return two clients of different classes; nobody holds class 3, on which one is tested."""
    return federated(
        client("ann", [0, 0, 0, 0, 0, 1, 1, 2, 2], [0, 1, 2, 2, 0]),
        client("bob", [1, 1, 1, 2, 2, 2], [1, 2, 3, 0, 1]),
    )


def softmax(method: str) -> dict:
    """Return the options of balanced softmax; a method around another has them in its base."""
    return (
        {"method.base_options": {"softmax": "balanced"}}
        if method == "tinyproto"
        else {"method.softmax": "balanced"}
    )


def balanced(method: str, data=None, **options):
    """Return a federation of networks in double precision; fixed_etf's pull as the tests have it."""
    pull = {"method.lambda": LAMBDA, "method.gamma": GAMMA} if method == "fixed_etf" else {}
    return build(method, data or two(), **{**softmax(method), **pull, **options})


@pytest.mark.parametrize("method", ["local", "fixed_etf"])
def test_two_rounds(method):
    """``−log softmax over A_i of f(x) + π_i, π_i(y) = log((n_iy + 1)/(n_i + K))``; head: argmax of f + π_i."""
    data = two()
    federation = balanced(method, data)
    targets = GAMMA * spread_directions(K, naive.D, naive.SEED, dtype=torch.float64)
    own = {c.name: naive.own_net(federation, c.name) for c in data.clients}
    for number, record in enumerate(federation.run(), start=1):
        assert record.bytes == {"up": 0, "down": 0}
        for place, c in enumerate(data.clients):
            labels = c.train.y.tolist()
            A, pi = sorted(set(labels)), naive_beacon.log_prior(labels, K, 1.0)

            def loss(w, batch, pi=pi, A=A):
                found = naive_beacon.mean_balanced(naive.logits, w, batch, pi, A)
                if method == "fixed_etf":
                    pulls = [((naive.features(w, x) - targets[y]) ** 2).sum() / naive.D for x, y in batch]
                    found = found + LAMBDA * naive.mean(pulls)
                return found

            steps = naive_beacon.batches(c.train, c.name, number, 0, 1)
            own[c.name] = naive_beacon.descend(own[c.name], steps, loss, naive.LR, 0.0)
            same_nets(naive.own_net(federation, c.name), own[c.name])
            hits = {"head": 0, "all_classes": 0}
            for x, y in zip(c.test.x.double(), c.test.y.tolist(), strict=True):
                f = naive.logits(own[c.name], x)
                hits["head"] += max(A, key=lambda k: float(f[k]) + pi[k]) == y
                hits["all_classes"] += max(A, key=lambda k: float(f[k])) == y
            for rule, right in hits.items():
                assert record.accuracy.clients[rule][place] == right / len(c.test), rule


HEADS = ("local", "fixed_etf", "fedproto", "tinyproto", "protonorm", "fedtgp", "gfpl")
"""Methods with a private head and the option that pull features."""
TAUGHT = {"feddistill": {"method.gamma": 0.0}, "fml": {"method.alpha": 1.0, "method.beta": 1.0}}
"""Methods whose heads learn absent classes from others, and the options without that."""


@few("method", [*HEADS, "beacon", "fedmrl", "fedper", "fedrep"], 4)
def test_absent_classes_get_no_gradient(method):
    """Their rows of the head do not move, in any round; a plain head pushes them down."""
    federation = build(method, two()) if method == "beacon" else balanced(method)
    before = {name: c.model.head.weight.clone() for name, c in visited(federation).items()}
    list(federation.run())
    for name, absent, held in (("ann", [3], [0, 1, 2]), ("bob", [0, 3], [1, 2])):
        now = visited(federation)[name].model.head.weight
        assert torch.equal(now[absent], before[name][absent])
        assert all(not torch.equal(now[c], before[name][c]) for c in held)
    plain = build("local", two())
    before = visited(plain)["ann"].model.head.weight.clone()
    list(plain.run())
    assert not torch.equal(visited(plain)["ann"].model.head.weight[3], before[3])


@few("method", [*HEADS, *TAUGHT], 3)
def test_a_balanced_head_without_a_pull_is_local_s(method):
    """With a weight of 0, what is exchanged changes nothing: loss, gradients and predictions are those of local."""
    nothing = {} if method == "local" else TAUGHT.get(method, {"method.lambda": 0.0})
    if method == "gfpl":
        nothing |= {"method.pfg": False, "method.dcs": False}
    alone, other = (balanced("local"), balanced(method, **nothing))
    for a, b in zip(alone.run(), other.run(), strict=True):
        assert b.losses["cross_entropy"] == pytest.approx(a.losses["cross_entropy"], abs=1e-12)
        for rule in ("head", "all_classes"):
            assert b.accuracy.clients[rule] == a.accuracy.clients[rule]
    plain = build(method, two(), **nothing)
    assert [r.losses["cross_entropy"] for r in plain.run()] != [
        a.losses["cross_entropy"] for a in balanced("local").run()
    ]


@pytest.mark.parametrize("method", ["local", "fixed_etf", "fedproto", "gfpl"])
def test_new_frequencies_replace_the_prior(method):
    """A_i stays, so classes that were never learned are no answer; plain softmax has no frequencies."""
    federation = balanced(method)
    list(federation.run())
    c = visited(federation)["bob"]
    counts = [7, 1, 0, 4]
    state = federation.method.shifted(c.state, torch.tensor(counts))
    assert state["own"].tolist() == c.state["own"].tolist() == [False, True, True, False]
    assert state["prior"].tolist() == pytest.approx([math.log((n + 1) / 16) for n in counts])
    x = torch.randn(60, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    received = federation.method.receive(c, None)
    found = predict(federation.method, c.model, Batch(x, torch.zeros(60, dtype=torch.int64)), received, state)
    f = c.model(x).logits
    assert torch.equal(found["head"], 1 + (f + state["prior"])[:, 1:3].argmax(1))
    assert torch.equal(found["all_classes"], 1 + f[:, 1:3].argmax(1))
    plain = build(method, two())
    before = visited(plain)["bob"].state
    assert plain.method.shifted(before, torch.tensor(counts)).keys() == before.keys()
    assert "prior" not in before


@pytest.mark.parametrize("method", ["local", "fixed_etf"])
def test_clients_of_one_class_and_of_none(method):
    """One class is the only answer; who trained on nothing may answer any."""
    federation = balanced(method, degenerate())
    last = list(federation.run())[-1]
    assert all(math.isfinite(v) for v in last.losses.values())
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    batch, answers = Batch(x, torch.zeros(50, dtype=torch.int64)), {}
    for name, c in visited(federation).items():
        received = federation.method.receive(c, None) if method == "fixed_etf" else {}
        answers[name] = predict(federation.method, c.model, batch, received, c.state)
    assert set(answers["one-class"]["head"].tolist()) == set(answers["one-class"]["all_classes"].tolist()) == {2}
    assert len(answers["no-training"]["head"].unique()) > 1
