"""AlignFed: against a naive reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import naive
from naive import build, same, same_nets, uneven
from protofed.methods import Batch
from protofed.prototypes.etf import spread_directions
from support import K, visited

WEIGHT, LAST, TAU = 0.6, 0.2, 0.3


def contrast(f, y, z, kind):
    """Return the contrast of vectors with points, term by term."""
    s = [[a @ point / (a @ a).sqrt().clamp(min=1e-12) / TAU for point in z] for a in f]
    if kind == "points":
        return naive.mean([naive.cross_entropy(torch.stack(row), c) for row, c in zip(s, y, strict=True)])
    total = 0.0
    for c in range(len(z)):
        everyone = sum(row[c].exp() for row in s).log()
        own = [row[c] - everyone for row, label in zip(s, y, strict=True) if label == c]
        total = total - (naive.mean(own) if own else 0.0) / len(z)
    return total


def loss(w, batch, z, weight, kind):
    """``CE + λ_t·contrast``."""
    f, y = [naive.features(w, x) for x, _ in batch], [c for _, c in batch]
    crossed = naive.mean([naive.cross_entropy(naive.head(w, a), c) for a, c in zip(f, y, strict=True)])
    return crossed + weight * contrast(f, y, z, kind)


@pytest.mark.parametrize("kind", ["samples", "points"])
def test_two_rounds(kind):
    data = uneven()
    options = {"method__lambda": WEIGHT, "method__last": LAST, "method__temperature": TAU, "method__contrast": kind}
    federation = build("alignfed", data, **options)
    z = spread_directions(K, naive.D, naive.SEED, dtype=torch.float64)
    own = {c.name: naive.own_net(federation, c.name) for c in data.clients}
    shared = [t.clone() for t in federation.server.values()]
    total = sum(len(c.train) for c in data.clients)
    rounds = federation.method.task.rounds
    for number, record in enumerate(federation.run(), start=1):
        weight = WEIGHT * (LAST / WEIGHT) ** ((number - 1) / rounds)
        for c in data.clients:
            w = own[c.name][:2] + shared
            for batch in naive.rounds_of(c.train, c.name, number):
                (w,), _ = naive.step([w], lambda n, b=batch, v=weight: loss(n[0], b, z, v, kind))
            own[c.name] = w
        shared = [sum(len(c.train) * own[c.name][i] for c in data.clients) / total for i in (2, 3)]
        same_nets(list(federation.server.values()), shared)
        hits = []
        for c in data.clients:
            guesses = [int(naive.logits(own[c.name][:2] + shared, x.double()).argmax()) for x in c.test.x]
            hits.append(sum(a == b for a, b in zip(guesses, c.test.y.tolist(), strict=True)) / len(c.test))
        assert record.accuracy.clients["head"] == hits


@pytest.fixture(scope="module")
def plain():
    """A federation whose features are the samples themselves."""
    return build(
        "alignfed", model__name="identity", model__options={}, method__temperature=TAU, method__contrast="points"
    )


@given(seed=st.integers(0, 2**31), n=st.integers(1, 5), scale=st.sampled_from([0.0, 1e-3, 1e3]))
def test_the_contrast_sees_directions_alone_and_is_least_at_the_points(plain, seed, n, scale):
    """Gradients of features of length 0 are finite."""
    source, c = torch.Generator().manual_seed(seed), visited(plain)["ann"]
    x = torch.randn(n, 6, generator=source, dtype=torch.float64)
    y, order = torch.randint(0, K, (n,), generator=source), torch.randperm(K, generator=source)
    z = spread_directions(K, 6, seed, dtype=torch.float64)

    def contrast(x, y, z):
        return plain.method.aligned(1.0, c.model, Batch(x, y), {"points": z}, c.state)[0]["contrast"]

    moved = (scale * x).requires_grad_()
    found = contrast(moved, order.argsort()[y], z[order])
    same(found, contrast(x, y, z) if scale else torch.full_like(found, K).log())
    assert float(contrast(z[y], y, z)) <= float(found.detach()) + 1e-9
    assert bool(torch.autograd.grad(found, moved)[0].isfinite().all())
