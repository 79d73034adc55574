"""FedSAF: against a naive reference for both relations, and what neither of them depends on."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import naive
from naive import build, same, same_nets, uneven
from protofed.errors import ConfigError
from protofed.methods import Batch
from protofed.methods.fedsaf import relations
from support import K, visited

WEIGHT = 0.7


def length(v):
    return (v @ v).sqrt()


def loss(w, batch, shared, relation):
    """``CE + λ·mean over pairs (r(c_i, c_j) − r(C_i, C_j))²``."""
    f, y = [naive.features(w, x) for x, _ in batch], [c for _, c in batch]
    crossed = naive.mean([naive.cross_entropy(naive.head(w, a), c) for a, c in zip(f, y, strict=True)])
    own = {c: naive.mean([a for a, b in zip(f, y, strict=True) if b == c]) for c in sorted(set(y)) if c in shared}
    pairs = [(i, j) for i in own for j in own if i != j]
    if not pairs:
        return crossed
    if relation == "cosines":
        found, wanted = (
            [p[i] @ p[j] / (length(p[i]).clamp(min=1e-12) * length(p[j]).clamp(min=1e-12)) for i, j in pairs]
            for p in (own, shared)
        )
    else:
        apart = [[length(p[i] - p[j]) for i, j in pairs] for p in (own, shared)]
        found, wanted = ([d / naive.mean(one) for d in one] for one in apart)
    return crossed + WEIGHT * naive.mean([(a - b) ** 2 for a, b in zip(found, wanted, strict=True)])


@pytest.mark.parametrize("relation", ["cosines", "distances"])
def test_three_rounds(relation):
    data = uneven()
    federation = build("fedsaf", data, rounds=3, method__lambda=WEIGHT, method__relation=relation)
    own = {c.name: naive.own_net(federation, c.name) for c in data.clients}
    shared = {}
    for number, record in enumerate(federation.run(), start=1):
        sent = {y: [] for y in range(K)}
        for c in data.clients:
            for batch in naive.rounds_of(c.train, c.name, number):
                (own[c.name],), _ = naive.step(
                    [own[c.name]], lambda n, b=batch, known=shared: loss(n[0], b, known, relation)
                )
            same_nets(naive.own_net(federation, c.name), own[c.name])
            f = [naive.features(own[c.name], x.double()) for x in c.train.x]
            for y in sorted(set(c.train.y.tolist())):
                sent[y].append(naive.mean([a for a, b in zip(f, c.train.y.tolist(), strict=True) if b == y]))
        shared = {y: naive.mean(rows) for y, rows in sent.items() if rows}
        for y, row in shared.items():
            same(federation.server["prototypes"][y], row)
        assert set(record.accuracy.clients) == {"head", "local"}


@given(seed=st.integers(0, 2**31), relation=st.sampled_from(["cosines", "distances"]), absent=st.booleans())
def test_relations_know_nothing_of_the_basis(seed, relation, absent):
    """Nor of the scale; distances nor of the origin."""
    source = torch.Generator().manual_seed(seed)
    rows = torch.randn(5, 4, generator=source, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(4, 4, generator=source, dtype=torch.float64))[0]
    pairs = ~torch.eye(5, dtype=torch.bool)
    if absent:
        pairs[2], pairs[:, 2] = False, False
    moved = 3.0 * rows @ turn + (10.0 if relation == "distances" else 0.0)
    torch.testing.assert_close(
        relations(moved, pairs, relation)[pairs], relations(rows, pairs, relation)[pairs], rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize("relation", ["cosines", "distances"])
def test_coinciding_and_zero_means_have_finite_gradients(relation):
    rows = torch.zeros(4, 3, requires_grad=True)
    (relations(rows, ~torch.eye(4, dtype=torch.bool), relation) ** 2).sum().backward()
    assert bool(rows.grad.isfinite().all())


@pytest.mark.parametrize("relation", ["cosines", "distances"])
def test_one_class_or_no_prototypes_leave_cross_entropy(relation):
    federation, alone = build("fedsaf", method__relation=relation), build("local")
    c = visited(federation)["ann"]
    given = {"prototypes": torch.randn(K, naive.D, dtype=torch.float64), "present": torch.ones(K, dtype=torch.bool)}
    one = torch.zeros_like(c.train.y)
    for received, y in ((federation.method.receive(c, None), c.train.y), (given, one)):
        batch = Batch(c.train.x.double(), y)
        terms, _ = federation.method.loss(c.model, batch, received, c.state)
        expected, _ = alone.method.loss(c.model, batch, {}, {})
        assert not terms["relations"].detach().any()
        same(terms["cross_entropy"], expected["cross_entropy"])


def test_bad_options():
    with pytest.raises(ConfigError, match="regulariser"):
        build("fedsaf", method__regulariser="samples")
    with pytest.raises(ConfigError, match=r"relation must be .cosines. or .distances., not"):
        build("fedsaf", method__relation="angles")
