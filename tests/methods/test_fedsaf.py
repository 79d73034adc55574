"""FedSAF: against a naive reference for each structure, and what none of them depends on."""

from __future__ import annotations

import pytest
import torch

import naive
from naive import build, same, same_nets, uneven
from protofed.methods import Batch
from protofed.methods.fedsaf import structural as structural_loss
from support import K, visited

WEIGHT, SAMPLES = 0.7, 0.3
STRUCTURES = ["cka", "gram", "distances"]


def centred(rows):
    middle = naive.mean(rows)
    return [v - middle for v in rows]


def structural(rows, targets, kind):
    """Return the loss between two lists of vectors, pair by pair."""
    n = len(rows)
    if n < 2:
        return torch.zeros((), dtype=torch.float64)
    if kind == "gram":
        rows, targets = ([v / v.norm().clamp(min=1e-12) for v in one] for one in (rows, targets))
    if kind == "distances":
        pairs = [(i, j) for i in range(n) for j in range(i)]
        a, b = ([((one[i] - one[j]) @ (one[i] - one[j])).sqrt() for i, j in pairs] for one in (rows, targets))
    else:
        pairs = [(i, j) for i in range(n) for j in range(n)]
        rows, targets = centred(rows), centred(targets)
        a, b = ([one[i] @ one[j] for i, j in pairs] for one in (rows, targets))
    if kind == "gram":
        return naive.mean([(p - q) ** 2 for p, q in zip(a, b, strict=True)])
    lengths = sum(p * p for p in a).sqrt() * sum(q * q for q in b).sqrt()
    return 1 - sum(p * q for p, q in zip(a, b, strict=True)) / lengths


def loss(w, batch, shared, kind):
    """``CE + λ·ℓ(c, C) + γ·ℓ(f, C_y)``."""
    f, y = [naive.features(w, x) for x, _ in batch], [c for _, c in batch]
    crossed = naive.mean([naive.cross_entropy(naive.head(w, a), c) for a, c in zip(f, y, strict=True)])
    if not shared:
        return crossed
    own = {c: naive.mean([a for a, b in zip(f, y, strict=True) if b == c]) for c in sorted(set(y)) if c in shared}
    classes = structural([*own.values()], [shared[c] for c in own], kind)
    targets = [shared.get(c, a.detach()) for a, c in zip(f, y, strict=True)]
    return crossed + WEIGHT * classes + SAMPLES * structural(f, targets, kind)


@pytest.mark.parametrize("kind", STRUCTURES)
def test_three_rounds(kind):
    data = uneven()
    options = {"method__lambda": WEIGHT, "method__samples": SAMPLES, "method__structure": kind}
    federation = build("fedsaf", data, rounds=3, **options)
    own = {c.name: naive.own_net(federation, c.name) for c in data.clients}
    shared = {}
    for number, record in enumerate(federation.run(), start=1):
        sent = {y: [] for y in range(K)}
        for c in data.clients:
            for batch in naive.rounds_of(c.train, c.name, number):
                (own[c.name],), _ = naive.step(
                    [own[c.name]], lambda n, b=batch, known=shared: loss(n[0], b, known, kind)
                )
            same_nets(naive.own_net(federation, c.name), own[c.name])
            f = [naive.features(own[c.name], x.double()) for x in c.train.x]
            for y in sorted(set(c.train.y.tolist())):
                sent[y].append(naive.mean([a for a, b in zip(f, c.train.y.tolist(), strict=True) if b == y]))
        shared = {y: naive.mean(rows) for y, rows in sent.items() if rows}
        for y, row in shared.items():
            same(federation.server["prototypes"][y], row)
        assert set(record.accuracy.clients) == {"head", "local"}


@pytest.mark.parametrize("kind", STRUCTURES)
def test_coinciding_and_zero_rows_have_finite_gradients(kind):
    rows = torch.zeros(4, 3, requires_grad=True)
    structural_loss(rows, torch.randn(4, 3), torch.ones(4), kind).backward()
    assert bool(rows.grad.isfinite().all())


@pytest.mark.parametrize("kind", STRUCTURES)
def test_one_sample_or_no_prototypes_leave_cross_entropy(kind):
    federation, alone = build("fedsaf", method__structure=kind), build("local")
    c = visited(federation)["ann"]
    given = {"prototypes": torch.randn(K, naive.D, dtype=torch.float64), "present": torch.ones(K, dtype=torch.bool)}
    for received, n in ((federation.method.receive(c, None), len(c.train)), (given, 1)):
        batch = Batch(c.train.x[:n].double(), c.train.y[:n])
        terms, _ = federation.method.loss(c.model, batch, received, c.state)
        expected, _ = alone.method.loss(c.model, batch, {}, {})
        assert not terms["classes"].detach().any()
        assert not terms["samples"].detach().any()
        same(terms["cross_entropy"], expected["cross_entropy"])
