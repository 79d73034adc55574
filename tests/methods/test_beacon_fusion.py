"""Beacon's fusion learned on validation samples, its control without exchange, and shifted class frequencies."""

from __future__ import annotations

import math
from contextlib import closing

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import naive
import naive_beacon
from naive import build, same_nets
from protofed.errors import ConfigError
from protofed.experiments.assemble import assemble
from protofed.methods import Batch, predict
from protofed.prototypes.fusion import fit_weights
from protofed.samples import ClientData, FederatedData
from support import K, client, experiment, federated, few, held_out, ordinary, samples, visited


def learners() -> FederatedData:
    """Return clients of which one has validation samples of two classes, one of classes it lacks, and one none."""
    ann, bob, cid = ordinary().clients
    return federated(held_out(ann, [0, 1, 1, 2, 0]), held_out(bob, [0, 0]), cid)


def beacon_of(federation, name):
    return [p.detach().clone() for p in visited(federation)[name].model.extras["beacon"].parameters()]


# Learned on validation samples: a, b = argmin of Σ CE(a·f + b·g + π, y) + κ((a − ½)² + (b − ½)²).

SCALES = st.sampled_from([0.01, 1.0, 30.0, 1e4])


def drawn(seed: int, n: int, classes: int, scale: float) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    f, h = torch.randn(2, n, classes, generator=g, dtype=torch.float64)
    prior = torch.randn(classes, generator=g, dtype=torch.float64).log_softmax(-1)
    return scale * f, (3 * h).log_softmax(-1), prior, torch.randint(classes, (n,), generator=g)


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 6), SCALES, st.sampled_from([0.01, 1.0, 50.0]))
@example(78005, 7, 4, 1e4, 50.0)
def test_the_loss_has_no_slope_where_it_ends(seed, n, classes, scale, caution):
    """The loss is convex, so a point without slope is its least; by autograd, relative to the largest slope."""
    f, g, prior, y = drawn(seed, n, classes, scale)
    w = fit_weights(f, g, prior, y, caution).requires_grad_()
    scores = w[0] * f + w[1] * g + prior
    loss = -scores.log_softmax(-1)[torch.arange(n), y].sum() + caution * (w - 0.5).square().sum()
    (slope,) = torch.autograd.grad(loss, w)
    largest = float(f.abs().sum() + g.abs().sum()) + caution
    assert float(slope.abs().max()) < 1e-7 * largest
    if classes == 1:
        assert w.tolist() == [0.5, 0.5]  # nothing to choose between, nothing to learn


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_diverged_network_leaves_the_mean(value):
    f, g, prior, y = drawn(0, 5, 3, 1.0)
    f[2, 1] = value
    assert fit_weights(f, g, prior, y, 1.0).tolist() == [0.5, 0.5]
    assert fit_weights(g, f, prior, y, 1.0).tolist() == [0.5, 0.5]


def test_outputs_without_measure_raise_nothing():
    """Multiples of each other so large that the penalty is lost beside them: no solution is unique."""
    _, g, prior, y = drawn(0, 5, 3, 1.0)
    assert fit_weights(1e12 * g, 1e12 * g, prior, y, 1.0).isfinite().all()
    assert fit_weights(g, g[:, [1, 0, 2]] * 1e150, prior, y, 1.0).isfinite().all()


def test_who_has_no_validation_samples_of_its_classes_takes_the_mean():
    learned, mean = (build("beacon", learners(), method__fusion=f) for f in ("validation", "average"))
    records = [list(federation.run()) for federation in (learned, mean)]
    weights = {name: c.received["fusion"].tolist() for name, c in visited(learned).items()}
    assert weights["ann"] != [0.5, 0.5]
    assert weights["bob"] == weights["cid"] == [0.5, 0.5]
    heads = [[r.accuracy.clients["head"][1:] for r in found] for found in records]
    assert heads[0] == heads[1]
    for name, tensor in learned.server.items():  # training does not see it
        assert torch.equal(tensor, mean.server[name])


def test_a_client_without_training_samples_learns_nothing():
    data = federated(*learners().clients, held_out(client("dan", [], [0, 1]), [0, 1, 2]))
    federation = build("beacon", data, method__fusion="validation")
    list(federation.run())
    assert visited(federation)["dan"].received["fusion"].tolist() == [0.5, 0.5]


@pytest.mark.parametrize("labels", [None, []])
def test_without_any_validation_samples_nothing_starts(labels):
    ann, bob = ordinary().clients[:2]
    data = federated(ann if labels is None else held_out(ann, labels), bob)
    with pytest.raises(
        ConfigError, match=r"^method.fusion=validation needs validation samples, of which no client"
    ):
        build("beacon", data, method__fusion="validation")


# Nothing exchanged.


@pytest.mark.slow
@few("executor", ["sequential", "fused"], 1)
def test_without_exchange_every_client_is_a_federation_of_its_own(executor):
    """Its small network is trained on its samples alone, from the same θ, and nothing is sent."""
    options = {"method__hidden": 3, "rounds": 3}
    federation = build("beacon", ordinary(), method__exchange=False, execution__executor=executor, **options)
    with closing(federation.executor):
        records = list(federation.run())
        assert not federation.server
        for record in records:
            assert record.bytes == record.parameters == {"up": 0, "down": 0}
        for place, owner in enumerate(ordinary().clients):
            alone = build("beacon", federated(owner), **options)
            expected = list(alone.run())
            same_nets(beacon_of(federation, owner.name), beacon_of(alone, owner.name))
            same_nets(naive.own_net(federation, owner.name), naive.own_net(alone, owner.name))
            for rule in federation.method.rules:
                own = [r.accuracy.clients[rule][place] for r in records]
                assert own == [r.accuracy.clients[rule][0] for r in expected], rule
    assert "that each client has for itself" in federation.method.notes()[0]
    assert federation.method.declared.counts == "never"


# Frequencies that change after training.


def shifted_answers(federation, name: str, counts: list[int], x: torch.Tensor) -> dict[str, int]:
    """Return the answers to one sample where classes have these frequencies: P and the parts with the new prior."""
    own = sorted(set(federation.executor.clients[name].train.y.tolist()))
    f = naive.logits(naive.own_net(federation, name), x)
    g = naive_beacon.log_softmax(naive_beacon.beacon(beacon_of(federation, name), x))
    prior = [math.log((n + 1) / (sum(counts) + K)) for n in counts]
    s = [float(f[y] + g[y]) / 2 for y in range(K)]
    p = naive_beacon.everything(s, g, own)
    now = [y for y in range(K) if counts[y]]
    return {
        "head": max(now, key=lambda y: math.log(p[y]) + prior[y]),
        "expert": max(own, key=lambda y: float(f[y]) + prior[y]),
        "beacon": max(range(K), key=lambda y: float(g[y]) + prior[y]),
        "all_classes": max(range(K), key=lambda y: p[y]),
        "global_model": max(range(K), key=lambda y: float(g[y])),
    }


@few("counts", [[0, 0, 3, 9], [1, 0, 0, 0], [5, 5, 5, 5]], 1)
def test_the_prior_is_replaced_and_what_was_learned_stays(counts):
    """A_i stays; π_i is that of the new frequencies; the head may answer classes that the expert never saw."""
    federation = build("beacon", ordinary(), method__hidden=3)
    list(federation.run())
    ann = visited(federation)["ann"]
    before = {n: t.clone() for n, t in ann.state.items()}
    state = federation.method.shifted(ann.state, torch.tensor(counts))
    assert all(torch.equal(ann.state[n], t) for n, t in before.items())
    assert torch.equal(state["own"], before["own"])
    assert state["prior"].tolist() == pytest.approx([math.log((n + 1) / (sum(counts) + K)) for n in counts])
    x = samples([0, 1, 2, 3] * 5, seed=9).x.double()
    found = predict(federation.method, ann.model, Batch(x, torch.zeros(20, dtype=torch.int64)), {}, state)
    for i, row in enumerate(x):
        expected = shifted_answers(federation, "ann", counts, row)
        assert {rule: int(classes[i]) for rule, classes in found.items()} == expected


def test_a_client_of_no_class_may_answer_any():
    """Neither before nor after a shift to nothing."""
    data = federated(*ordinary().clients, ClientData("dan", samples([]), samples([0, 1])))
    federation, _ = assemble(experiment("beacon"), data)
    list(federation.run())
    dan = visited(federation)["dan"]
    state = federation.method.shifted(dan.state, torch.zeros(K, dtype=torch.int64))
    x = samples([0, 1, 2, 3] * 5, seed=9).x
    found = predict(federation.method, dan.model, Batch(x, torch.zeros(20, dtype=torch.int64)), {}, state)
    assert all(torch.equal(classes, found["global_model"]) for classes in found.values())
    assert len(found["global_model"].unique()) > 1
