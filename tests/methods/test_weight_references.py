"""Methods that share weights against naive double-precision references: three clients, two rounds."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from naive_weights import (
    B1,
    B2,
    W1,
    W2,
    answer,
    assert_near,
    build,
    cross_entropy,
    descend,
    features,
    gradient,
    logits,
    mean,
    softmax,
)
from support import K, few, visited

THETA, PHI = (W1, B1), (W2, B2)
ALL = (*THETA, *PHI)
D = 5


def sizes(parties, weighting="samples"):
    return [len(p.train) if weighting == "samples" else 1 for p in parties]


def total(parties, losses):
    """Return the mean of the clients' losses, weighted by their samples."""
    return sum(len(p.train) * v for p, v in zip(parties, losses, strict=True)) / sum(len(p.train) for p in parties)


def unit(v):
    """Return ``v/‖v‖``; features that are all 0 stay so."""
    return v / max(np.linalg.norm(v), 1e-12)


def check_scores(record, parties, global_weights):
    """Compare the accuracy of the global model and of what each client's training left behind."""
    found = record.accuracy.clients
    assert found["global_model"] == pytest.approx([p.accuracy(answer(global_weights)) for p in parties])
    assert found["head"] == pytest.approx([p.accuracy(answer(p.weights)) for p in parties])


def check_rounds(federation, parties, loss_of, *, weighting="samples", epochs=1, scores=check_scores):
    """Compare rounds in which all clients start from the same weights, which are then averaged; return the last.

    Args:
        loss_of: Returns the loss of a client, given its weights before and the common ones, in a round.
    """
    current = {n: w.numpy().copy() for n, w in federation.server.items()}
    for number, record in enumerate(federation.run(), start=1):
        losses = []
        for p in parties:
            loss = loss_of(p, current, number)
            p.weights = dict(current)
            losses.append(sum(p.epoch(loss, ALL, number, 0, epoch) for epoch in range(epochs)) / epochs)
        current = mean([p.weights for p in parties], sizes(parties, weighting))
        assert record.losses["total"] == pytest.approx(total(parties, losses), rel=1e-6)
        assert_near(federation.server, current)
        scores(record, parties, current)
    return record


@few("weighting", ["samples", "uniform"], 1)
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_fedprox(mu, weighting):
    """``L = CE + (μ/2)·‖w − w^t‖²``, then ``w^{t+1} = Σ (n_i/Σ n)·w_i``; with μ = 0, FedAvg."""

    def loss_of(p, start, number):
        def loss(w, batch):
            drift = sum(((w[n] - start[n]) ** 2).sum() for n in ALL)
            return cross_entropy(w, batch) + mu / 2 * drift

        return loss

    options = {"method__mu": mu, "method__weighting": weighting, "training__epochs": 2}
    record = check_rounds(*build("fedprox", **options), loss_of, weighting=weighting, epochs=2)
    assert (record.losses["proximal"] > 0) is (mu > 0)


@few(("mu", "tau"), [(0.0, 0.5), (1.5, 0.3)], 2)
def test_moon(mu, tau):
    """``L = CE + μ·ℓ_con`` (Eq. 3), with the client's last model and the received one held still."""

    def loss_of(p, start, number):
        last = p.weights

        def loss(w, batch):
            total = 0.0
            for x, _ in batch:
                z, z_g, z_l = (unit(features(v, x)) for v in (w, start, last))
                near, far = math.exp(z @ z_g / tau), math.exp(z @ z_l / tau)
                total -= math.log(near / (near + far)) / len(batch)
            return cross_entropy(w, batch) + (mu if number > 1 else 0.0) * total

        return loss

    check_rounds(*build("moon", method__mu=mu, method__temperature=tau), loss_of)


def calibrations(p, tau, prior):
    """``−τ·n_y^(−1/4)``, −∞ for an absent class, or ``log((n_y + ρ)/(n + ρK))`` with ρ = ½."""
    counts = [sum(y == c for _, y in p.train) for c in range(K)]
    if prior:
        return np.log([(n + 0.5) / (sum(counts) + 0.5 * K) for n in counts])
    return np.array([-tau / n**0.25 if n else -math.inf for n in counts])


@few(("tau", "prior"), [(0.0, False), (0.7, False), (1.0, True)], 2)
def test_fedlc(tau, prior):
    """``L = CE(g(f(x)) + c_i)``, then ``w^{t+1} = Σ (n_i/Σ n)·w_i``; answers with ``c_i`` and without."""

    def loss_of(p, start, number):
        c = calibrations(p, tau, prior)
        return lambda w, batch: -sum(math.log(softmax(logits(w, x) + c)[y]) for x, y in batch) / len(batch)

    def scores(record, parties, current):
        found = record.accuracy.clients
        for p, *three in zip(parties, found["global_model"], found["global_prior"], found["head"], strict=True):
            c = calibrations(p, tau, prior)
            own, everyone = ([logits(w, x) for x, _ in p.test] for w in (p.weights, current))
            answers = (everyone, [z + c for z in everyone], [z + c for z in own])
            assert three == pytest.approx([p.accuracy_of(each) for each in answers])

    options = {"method__calibration": "prior" if prior else "margin", "method__tau": tau, "method__rho": 0.5}
    check_rounds(*build("fedlc", **options), loss_of, scores=scores)


def check_shared(federation, parties, names, weighting="samples"):
    """Compare rounds in which clients train all weights, and some are averaged."""
    for number, record in enumerate(federation.run(), start=1):
        losses = [p.epoch(cross_entropy, ALL, number) for p in parties]
        shared = mean([{n: p.weights[n] for n in names} for p in parties], sizes(parties, weighting))
        for p in parties:
            p.weights |= shared
        assert record.losses["cross_entropy"] == pytest.approx(total(parties, losses), rel=1e-6)
        assert set(federation.server) == set(names)
        assert_near(federation.server, shared)
        # Scored with what is fresh of the server's and the rest of their own.
        assert record.accuracy.clients["head"] == pytest.approx([p.accuracy(answer(p.weights)) for p in parties])


def test_fedper():
    """``L = CE`` over θ and φ_i together; ``θ^{t+1} = Σ (n_i/Σ n)·θ_i``; φ_i is never reset."""
    federation, parties = build("fedper")
    check_shared(federation, parties, THETA)
    for p in parties:
        assert_near(visited(federation)[p.name].model.state_dict(), p.weights)


def test_fedrep():
    """τ_h epochs of φ_i with θ fixed, then τ_r of θ with φ_i fixed; θ is averaged."""
    federation, parties = build("fedrep", method__head_epochs=2)
    for number, record in enumerate(federation.run(), start=1):
        for p in parties:
            for epoch in range(2):
                p.epoch(cross_entropy, PHI, number, 0, epoch)
            p.epoch(cross_entropy, THETA, number, 1, 0)
        shared = mean([{n: p.weights[n] for n in THETA} for p in parties], sizes(parties))
        for p in parties:
            p.weights |= shared
            assert_near(visited(federation)[p.name].model.state_dict(), p.weights)
        assert_near(federation.server, shared)
        assert record.accuracy.clients["head"] == pytest.approx([p.accuracy(answer(p.weights)) for p in parties])


@few("weighting", ["samples", "uniform"], 1)
def test_lg_fedavg(weighting):
    """``L = CE`` over θ_i and φ together; ``φ^{t+1} = Σ (n_i/Σ n)·φ_i``; θ_i never leaves."""
    check_shared(*build("lg_fedavg", method__weighting=weighting), PHI, weighting)


def test_fesem():
    """E: ``r_i = argmin_c ‖w_i − W_c‖``; M: ``W_c = mean{w_i : r_i = c}``; an empty centre keeps its weights."""
    federation, parties = build("fesem", method__clusters=2, rounds=3)
    start = {n: federation.server[f"centre.{n}"][0].numpy().copy() for n in ALL}
    opening = dict.fromkeys((p.name for p in parties), start)
    centres = None
    for number, record in enumerate(federation.run(), start=1):
        for p in parties:
            p.weights = dict(opening[p.name])
            p.epoch(cross_entropy, ALL, number)
        # The first centres are two of the uploads, drawn at random: one pair has to explain all that follows.
        pairs = itertools.permutations([p.weights for p in parties], 2) if centres is None else [centres]
        explained = [em(parties, pair) for pair in pairs]
        matching = [e for e in explained if near(federation.server, e)]
        assert matching
        assigned, centres = matching[0]
        opening = {p.name: centres[r] for p, r in zip(parties, assigned, strict=True)}
        for p, r in zip(parties, assigned, strict=True):
            assert int(federation.server[f"cluster.{p.name}"]) == r
        found = record.accuracy.clients["global_model"]
        assert found == pytest.approx([p.accuracy(answer(opening[p.name])) for p in parties])
        sizes = {str(c + 1): assigned.count(c) for c in range(2)}
        assert record.diagnostics["cluster_size"] == sizes


def em(parties, centres):
    def distance(p, c):
        return math.sqrt(sum(((p.weights[n] - c[n]) ** 2).sum() for n in ALL))

    assigned = [min(range(len(centres)), key=lambda c, p=p: distance(p, centres[c])) for p in parties]
    moved = []
    for c, old in enumerate(centres):
        members = [p.weights for p, r in zip(parties, assigned, strict=True) if r == c]
        moved.append(mean(members, [1] * len(members)) if members else old)
    return assigned, moved


def near(server, explained) -> bool:
    _, centres = explained
    return all(
        np.allclose(server[f"centre.{n}"][c].numpy(), centre[n], rtol=1e-6, atol=1e-7)
        for c, centre in enumerate(centres)
        for n in ALL
    )


def test_feduv():
    """``CE + λ_v·(1/K)Σ max(0, 1/√K − std_b p_k) + λ_u·mean_{a<b} exp(−‖z_a − z_b‖²/median)``."""

    def loss(w, batch):
        value = cross_entropy(w, batch)
        if len(batch) < 2:
            return value
        p = [softmax(logits(w, x)) for x, _ in batch]
        for k in range(K):
            column = [row[k] for row in p]
            middle = sum(column) / len(column)
            std = math.sqrt(sum((v - middle) ** 2 for v in column) / (len(column) - 1))
            value += 2.5 / K * max(0.0, 1 / math.sqrt(K) - std)
        z = [features(w, x) for x, _ in batch]
        squared = [((a - b) ** 2).sum() for a, b in itertools.combinations(z, 2)]
        apart = sorted(v for v in squared if v > 0)
        sigma = apart[(len(apart) - 1) // 2]
        return value + 0.5 * sum(math.exp(-v / sigma) for v in squared) / len(squared)

    record = check_rounds(*build("feduv"), lambda p, start, number: loss)
    assert record.losses["variance"] > 0
    assert record.losses["uniformity"] > 0


def test_fednh():
    """Logits ``s·(f/‖f‖)·Wᵀ``; ``µ_ic = normalise(mean f/‖f‖)``; the server averages θ and s alike and moves W.

    ``W_c ← normalise(ρ·W_c + (1−ρ)·normalise(Σ n_ic·µ_ic / Σ n_ic))``.
    """
    federation, parties = build("fednh", method__scale=4.0, method__rho=0.6)
    W = federation.server["prototypes"].numpy().copy()
    np.testing.assert_allclose(W @ W.T, np.eye(K), atol=1e-12)
    S = "extras.scale.s"
    shared = (*THETA, S)
    current = {n: federation.server[n].numpy().copy() for n in shared}

    def directed(w, x):
        return unit(features(w, x))

    def loss(w, batch):
        return sum(-math.log(softmax(w[S] * (W @ directed(w, x)))[y]) for x, y in batch) / len(batch)

    for number, record in enumerate(federation.run(), start=1):
        losses, sums = [], np.zeros((K, D))
        for p in parties:
            p.weights |= current
            losses.append(p.epoch(loss, shared, number))
            for c in range(K):
                own = [directed(p.weights, x) for x, y in p.train if y == c]
                if own:
                    middle = sum(own) / len(own)
                    sums[c] += len(own) * unit(middle)
        current = mean([{n: p.weights[n] for n in shared} for p in parties], [1, 1, 1])
        for c in range(K):
            W[c] = unit(0.6 * W[c] + 0.4 * unit(sums[c]))
        assert record.losses["cross_entropy"] == pytest.approx(total(parties, losses), rel=1e-6)
        assert_near(federation.server, {**current, "prototypes": W})
        for rule, weights in (("global_model", [current] * 3), ("head", [p.weights for p in parties])):
            expected = [
                p.accuracy(lambda x, w=w: int((W @ directed(w, x)).argmax()))
                for p, w in zip(parties, weights, strict=True)
            ]
            assert record.accuracy.clients[rule] == pytest.approx(expected), rule


@few("calibration", ["after", "before", "none"], 1)
def test_fedfa(calibration):
    """``CE + (λ/K)·Σ_{c in batch} mean_{y_b=c} ‖f − a_c‖²`` by SGD, and ``CE(g(a_c), c)`` on φ by Adam, per batch.

    ``â_c ← ½·â_c + ½·m_c`` after each epoch for the own classes; w and anchors are averaged by n_i.
    """
    options = {"method__lambda": 2.0, "method__calibration": calibration}
    federation, parties = build("fedfa", **options, training__epochs=2)
    anchors = federation.server["anchors"].numpy().copy()
    assert sorted(anchors.sum(1)) == [1.0] * K
    current = {n: federation.server[n].numpy().copy() for n in ALL}

    def loss(w, batch):
        value = cross_entropy(w, batch)
        for c in {y for _, y in batch}:
            squared = [((features(w, x) - anchors[c]) ** 2).sum() for x, y in batch if y == c]
            value += 2.0 / K * sum(squared) / len(squared)
        return value

    def fit(w, _batch):
        return sum(-math.log(softmax(w[W2] @ anchors[c] + w[B2])[c]) for c in range(K)) / K

    for number, record in enumerate(federation.run(), start=1):
        own_anchors, losses = [], []
        for p in parties:
            p.weights, running, adam, value = dict(current), anchors.copy(), Adam(), 0.0
            for epoch in range(2):
                seen = {c: [] for c in range(K)}
                for batch in p.batches(number, 0, epoch):
                    if calibration == "before":
                        adam.step(p.weights, fit)
                    value += loss(p.weights, batch) * len(batch) / len(p.train) / 2
                    for x, y in batch:
                        seen[y].append(features(p.weights, x))
                    descend(p.weights, loss, batch, ALL)
                    if calibration == "after":
                        adam.step(p.weights, fit)
                for c in {y for _, y in p.train}:
                    running[c] = 0.5 * running[c] + 0.5 * sum(seen[c]) / len(seen[c])
            own_anchors.append({"anchors": running})
            losses.append(value)
        current = mean([p.weights for p in parties], sizes(parties))
        anchors = mean(own_anchors, sizes(parties))["anchors"]
        found = record.losses["cross_entropy"] + record.losses["anchor"]
        assert found == pytest.approx(total(parties, losses), rel=1e-5)
        for name, value in {**current, "anchors": anchors}.items():
            # Adam divides by tiny gradients, and so enlarges the error of differences.
            np.testing.assert_allclose(federation.server[name].numpy(), value, rtol=1e-4, atol=1e-6, err_msg=name)
        check_scores(record, parties, current)


class Adam:
    """Kingma and Ba's Algorithm 1, on the head, lr 1e-3."""

    def __init__(self):
        self.t, self.m, self.v = 0, dict.fromkeys(PHI, 0.0), dict.fromkeys(PHI, 0.0)

    def step(self, weights, loss):
        self.t += 1
        for name, g in gradient(weights, loss, [], PHI).items():
            self.m[name] = 0.9 * self.m[name] + 0.1 * g
            self.v[name] = 0.999 * self.v[name] + 0.001 * g**2
            m, v = self.m[name] / (1 - 0.9**self.t), self.v[name] / (1 - 0.999**self.t)
            weights[name] = weights[name] - 1e-3 * m / (np.sqrt(v) + 1e-8)
