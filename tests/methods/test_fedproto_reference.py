"""FedProto against a deliberately naive double-precision reference: loops over samples, classes and clients.

Two clients, two rounds, a model with one hidden layer whose gradients are written out by hand.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from protofed.compute.seeding import generator
from protofed.experiments.assemble import assemble
from support import FEATURES, K, client, experiment, federated, visited

D, LR, BATCH, LAMBDA, SEED = 5, 0.1, 4, 1.5, 3


class NaiveClient:
    """One client; its model is f(x) = relu(W1 x + b1), g(f) = W2 f + b2."""

    def __init__(self, name, weights, train, test):
        self.name, self.train, self.test = name, train, test
        self.W1, self.b1, self.W2, self.b2 = weights
        self.prototypes: dict[int, list[float]] = {}

    def features(self, x):
        return [max(0.0, sum(self.W1[i][m] * x[m] for m in range(FEATURES)) + self.b1[i]) for i in range(D)]

    def logits(self, f):
        return [sum(self.W2[j][i] * f[i] for i in range(D)) + self.b2[j] for j in range(K)]

    def step(self, samples, global_prototypes):
        """One SGD step on CE + λ·MSE; return the two loss terms."""
        n = len(samples)
        ce = pull = 0.0
        gW1, gb1 = np.zeros((D, FEATURES)), np.zeros(D)
        gW2, gb2 = np.zeros((K, D)), np.zeros(K)
        for x, y in samples:
            f = self.features(x)
            z = self.logits(f)
            top = max(z)
            total = sum(math.exp(v - top) for v in z)
            p = [math.exp(v - top) / total for v in z]
            ce += -math.log(p[y]) / n
            df = [0.0] * D
            for j in range(K):
                dz = (p[j] - (1.0 if j == y else 0.0)) / n
                gb2[j] += dz
                for i in range(D):
                    gW2[j][i] += dz * f[i]
                    df[i] += dz * self.W2[j][i]
            if y in global_prototypes:
                for i in range(D):
                    difference = f[i] - global_prototypes[y][i]
                    pull += difference**2 / (D * n)
                    df[i] += LAMBDA * 2 * difference / (D * n)
            for i in range(D):
                if f[i] > 0:
                    gb1[i] += df[i]
                    for m in range(FEATURES):
                        gW1[i][m] += df[i] * x[m]
        self.W1, self.b1 = self.W1 - LR * gW1, self.b1 - LR * gb1
        self.W2, self.b2 = self.W2 - LR * gW2, self.b2 - LR * gb2
        return ce, LAMBDA * pull

    def run_round(self, number, global_prototypes, when):
        """Train one epoch; return sample-weighted mean loss terms."""
        n = len(self.train)
        order = torch.randperm(n, generator=generator(SEED, "shuffle", number, self.name, 0, 0)).tolist()
        sums, counts, ce, pull = {}, {}, 0.0, 0.0
        for start in range(0, n, BATCH):
            batch = [self.train[i] for i in order[start : start + BATCH]]
            if when == "during":
                self.collect(batch, sums, counts)
            a, b = self.step(batch, global_prototypes)
            ce, pull = ce + a * len(batch) / n, pull + b * len(batch) / n
        if when == "after":
            self.collect(self.train, sums, counts)
        self.prototypes = {y: [v / counts[y] for v in sums[y]] for y in sums}
        self.counts = counts
        return ce, pull

    def collect(self, samples, sums, counts):
        for x, y in samples:
            f = self.features(x)
            sums[y] = [a + b for a, b in zip(sums.get(y, [0.0] * D), f, strict=True)]
            counts[y] = counts.get(y, 0) + 1

    def hits(self, global_prototypes):
        """Return the number of correct test predictions by each rule."""
        hits = dict.fromkeys(("head", "local", "global", "global_own"), 0)
        for x, y in self.test:
            f = self.features(x)
            z = self.logits(f)
            own = {j: c for j, c in global_prototypes.items() if j in self.prototypes}
            hits["head"] += max(range(K), key=lambda j, z=z: z[j]) == y
            hits["local"] += closest(f, self.prototypes) == y
            hits["global"] += closest(f, global_prototypes) == y
            hits["global_own"] += closest(f, own) == y
        return hits


def closest(f, prototypes):
    return min(prototypes, key=lambda j: sum((a - b) ** 2 for a, b in zip(f, prototypes[j], strict=True)))


def aggregate(clients, mode):
    result = {}
    for j in range(K):
        holders = [c for c in clients if j in c.prototypes]
        if not holders:
            continue
        if mode == "mean":
            weights = [1 / len(holders)] * len(holders)
        else:
            N = sum(c.counts[j] for c in holders)
            weights = [c.counts[j] / N for c in holders]
        if mode == "paper":
            weights = [w / len(holders) for w in weights]
        vectors = [c.prototypes[j] for c in holders]
        result[j] = [sum(w * v[i] for w, v in zip(weights, vectors, strict=True)) for i in range(D)]
    return result


@pytest.mark.parametrize("aggregation", ["mean", "weighted", "paper"])
@pytest.mark.parametrize("when", ["after", "during"])
def test_two_clients_two_rounds(aggregation, when):
    data = federated(
        client("ann", [0, 0, 0, 0, 0, 1, 1, 2, 2], [0, 1, 2, 2, 0, 3]),
        client("bob", [1, 1, 1, 1, 2, 2, 3], [1, 2, 3, 3, 1]),
    )
    federation, _ = assemble(
        experiment(
            seed=SEED,
            method__lambda=LAMBDA,
            method__aggregation=aggregation,
            method__prototypes=when,
            model__options={"hidden": [], "relu_features": True},
            training__lr=LR,
            wire__codec="float64",
            execution__precision="fp64",
        ),
        data,
    )
    naive = []
    for own in data.clients:
        weights = [w.detach().numpy().copy() for w in visited(federation)[own.name].model.parameters()]
        rows = [
            [(x.double().tolist(), int(y)) for x, y in zip(s.x, s.y, strict=True)] for s in (own.train, own.test)
        ]
        naive.append(NaiveClient(own.name, weights, *rows))

    prototypes: dict[int, list[float]] = {}
    sizes = [len(c.train) for c in naive]
    for number, record in enumerate(federation.run(), start=1):
        losses = [c.run_round(number, prototypes, when) for c in naive]
        prototypes = aggregate(naive, aggregation)
        for term, column in (("cross_entropy", 0), ("prototype", 1)):
            expected = sum(n * row[column] for n, row in zip(sizes, losses, strict=True)) / sum(sizes)
            assert record.losses[term] == pytest.approx(expected, rel=1e-12, abs=1e-15)
        assert federation.server["present"].tolist() == [j in prototypes for j in range(K)]
        for j, expected in prototypes.items():
            np.testing.assert_allclose(federation.server["prototypes"][j].numpy(), expected, rtol=1e-11, atol=1e-13)
        hits = [c.hits(prototypes) for c in naive]
        for rule, accuracies in record.accuracy.clients.items():
            assert accuracies == [h[rule] / len(c.test) for h, c in zip(hits, naive, strict=True)], rule
    assert record.losses["prototype"] > 0
