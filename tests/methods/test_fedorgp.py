"""FedORGP: against a naive reference, and what its objective does to prototypes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import naive
from naive import build, cosine, same, same_nets, uneven
from protofed.compute.seeding import generator
from protofed.prototypes.contrastive import orthogonality, prototype_network, train_prototypes
from support import K

WEIGHT, ATTRACTION, SEPARATION, RATE, EPOCHS, SIZE = 0.7, 1.3, 2.0, 0.05, 2, 3
CHOSEN = {
    "method__lambda": WEIGHT,
    "method__attraction": ATTRACTION,
    "method__separation": SEPARATION,
    "method__server_lr": RATE,
    "method__server_epochs": EPOCHS,
    "method__server_batch_size": SIZE,
}


def prototype(net, y):
    e, W1, b1, W2, b2 = net
    hidden = torch.stack([(W1[i] @ e[y] + b1[i]).clamp(min=0) for i in range(len(b1))])
    return torch.stack([W2[i] @ hidden + b2[i] for i in range(len(b2))])


def server_loss(net, batch):
    """``λ_s·(1 − s) + γ·d`` (Eq. 3 to 5)."""
    P = [prototype(net, y) for y in range(K)]
    s = sum(cosine(p, P[y]) for p, y in batch) / len(batch)
    d = sum(cosine(p, P[c]).abs() for p, y in batch for c in range(K) if c != y) / len(batch) / (K - 1)
    return ATTRACTION * (1 - s) + SEPARATION * d


def client_loss(w, batch, P):
    """Eq. 8; the first round has no prototypes."""
    total = []
    for x, y in batch:
        f = naive.features(w, x)
        pull = (1 - cosine(f, P[y])) if P is not None and y in P else torch.zeros((), dtype=f.dtype)
        total.append(naive.cross_entropy(naive.head(w, f), y) + WEIGHT * pull)
    return naive.mean(total)


def test_two_rounds():
    data = uneven()
    federation = build("fedorgp", data, **CHOSEN)
    own = {c.name: naive.own_net(federation, c.name) for c in data.clients}
    names = ("embedding", "hidden_weight", "hidden_bias", "output_weight", "output_bias")
    net = [federation.server[f"network.{n}"].clone() for n in names]
    P = None
    for number, record in enumerate(federation.run(), start=1):
        pairs = []
        for c in data.clients:
            for batch in naive.rounds_of(c.train, c.name, number):
                (own[c.name],), _ = naive.step([own[c.name]], lambda n, b=batch, P=P: client_loss(n[0], b, P))
            f = [naive.features(own[c.name], x.double()) for x in c.train.x]
            for y in sorted(set(c.train.y.tolist())):
                pairs.append((naive.mean([a for a, b in zip(f, c.train.y.tolist(), strict=True) if b == y]), y))
            same_nets(naive.own_net(federation, c.name), own[c.name])
        order = generator(naive.SEED, "server training", number)
        for _ in range(EPOCHS):
            rows = torch.randperm(len(pairs), generator=order).tolist()
            for start in range(0, len(rows), SIZE):
                batch = [pairs[i] for i in rows[start : start + SIZE]]
                (net,), _ = naive.step([net], lambda n, batch=batch: server_loss(n[0], batch), RATE)
        P = {y: prototype(net, y) for y in range(K)}
        for y in range(K):
            same(federation.server["prototypes"][y], P[y])
        largest = max(abs(float(cosine(P[a], P[b]))) for a in range(K) for b in range(a))
        assert record.diagnostics["largest_cosine"] == pytest.approx(largest)
        hits = []
        for c in data.clients:
            found = [naive.features(own[c.name], x.double()) for x in c.test.x]
            guesses = [max(range(K), key=lambda y, f=f: float(cosine(f, P[y]))) for f in found]
            hits.append(sum(a == b for a, b in zip(guesses, c.test.y.tolist(), strict=True)) / len(c.test))
        assert record.accuracy.clients["global"] == hits


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 7), st.integers(0, 1000))
def test_the_gradient_is_that_of_the_formula(n, K, d, seed):
    g = torch.Generator().manual_seed(seed)
    p = torch.randn(n, d, generator=g, dtype=torch.float64)
    P = torch.randn(K, d, generator=g, dtype=torch.float64)
    y = torch.randint(0, K, (n,), generator=g)
    loss, slope = orthogonality(0.5, 2.0)(p, P, torch.nn.functional.one_hot(y, K).double())
    leaf = P.clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for i in range(n):
        total = total + 0.5 * (1 - cosine(p[i], leaf[y[i]]))
        for c in range(K):
            if c != y[i]:
                total = total + 2.0 / (K - 1) * cosine(p[i], leaf[c]).abs()
    (expected,) = torch.autograd.grad(total / n, leaf)
    same(loss, total.detach())
    torch.testing.assert_close(slope, expected, rtol=1e-6, atol=1e-9)


def test_training_makes_prototypes_orthogonal():
    """Clients' means point nearly the same way; with an attraction they keep it, without they part."""
    g = torch.Generator().manual_seed(0)
    uploads = torch.ones(12, 8, dtype=torch.float64) + 0.2 * torch.randn(12, 8, generator=g, dtype=torch.float64)
    labels = torch.arange(4).repeat(3)
    start = prototype_network(4, 8, generator=g, dtype=torch.float64)

    def largest(attraction, separation):
        objective = orthogonality(attraction, separation)
        P = train_prototypes(start, uploads, labels, objective, epochs=400, lr=0.1, generator=g).prototypes
        unit = torch.nn.functional.normalize(P)
        return float((unit @ uploads[0] / uploads[0].norm()).abs().max())

    assert largest(0.0, 1.0) < 0.2
    assert largest(1.0, 0.0) > 0.9
