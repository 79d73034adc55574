"""FedProc, FPL and FedPLVM: against a naive reference."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import naive
from naive import build, cosine, same, same_nets, uneven
from protofed.methods import Batch
from protofed.methods.contract import Upload
from protofed.methods.parts.beside import contrast
from protofed.prototypes.finch import finch
from support import K

TAU = {"fedproc": 1.0, "fpl": 0.02, "fedplvm": 0.07}
LAMBDA, POWER = 0.3, 0.25
TABLES = ("prototypes", "present", "clusters", "held")

ROUNDS = 3


def apart(f, y, table, tau, power=1.0):
    """``−log(Σ_{p of y} e^{cos^α/τ} / Σ_p e^{cos^α/τ})``."""
    if not table[y]:
        return f.sum() * 0

    def near(p):
        return cosine(f, p) if power == 1 else cosine(f, p).clamp(min=1e-4) ** power

    logits = [(c, near(p) / tau) for c in range(K) for p in table[c]]
    top = max(float(z.detach()) for _, z in logits)
    whole = sum((z - top).exp() for _, z in logits)
    return whole.log() - sum((z - top).exp() for c, z in logits if c == y).log()


def loss(method, w, batch, table, number):
    total = []
    for x, y in batch:
        f = naive.features(w, x)
        ce = naive.cross_entropy(naive.head(w, f), y)
        away = apart(f, y, table, TAU[method], POWER if method == "fedplvm" else 1.0)
        if method == "fedproc":
            alpha = 1 - (number - 1) / (ROUNDS - 1) if any(table.values()) else 0.0
            total.append(alpha * away + (1 - alpha) * ce)
        elif table[y] and method == "fedplvm":
            u = naive.mean(table[y])
            total.append(ce + LAMBDA * (away + 2 * (1 - cosine(f, u)) ** 2))
        elif table[y]:
            u = naive.mean(table[y])
            total.append(ce + away + ((f - u) ** 2).sum() / len(f))
        else:
            total.append(ce)
    return naive.mean(total)


def clustered(rows):
    """Return the means of the clusters of some rows, the largest first."""
    found = finch(torch.stack(rows)).tolist()
    groups = [[r for r, c in zip(rows, found, strict=True) if c == k] for k in range(max(found) + 1)]
    return [naive.mean(g) for g in sorted(groups, key=len, reverse=True)]


@pytest.mark.parametrize("method", ["fedproc", "fpl", "fedplvm"])
def test_three_rounds(method):
    data = uneven()
    options = {"lambda": LAMBDA, "power": POWER} if method == "fedplvm" else {"prototypes": "after"}
    federation = build(method, data, rounds=ROUNDS, **{f"method__{n}": v for n, v in options.items()})
    weights = naive.own_net(federation, "ann")
    table = {c: [] for c in range(K)}
    for number, record in enumerate(federation.run(), start=1):
        sent, means = {}, {c: [] for c in range(K)}
        for c in data.clients:
            w = weights
            for batch in naive.rounds_of(c.train, c.name, number):
                (w,), _ = naive.step([w], lambda n, b=batch, t=number: loss(method, n[0], b, table, t))
            sent[c.name] = w
            f, labels = [naive.features(w, x.double()) for x in c.train.x], c.train.y.tolist()
            for y in sorted(set(labels)):
                own = [a for a, b in zip(f, labels, strict=True) if b == y]
                means[y] += clustered(own) if method == "fedplvm" else [naive.mean(own)]
        n = sum(len(c.train) for c in data.clients)
        weights = [sum(len(c.train) * sent[c.name][i] for c in data.clients) / n for i in range(4)]
        for y, rows in means.items():
            if method == "fedproc":
                table[y] = [naive.mean(rows)] if rows else table[y]
            elif rows:
                table[y] = clustered(rows)
        names = [n for n in federation.server if n not in TABLES]
        same_nets([federation.server[n] for n in names], weights)
        first = 0 if method == "fedproc" else 2
        rows, present = (federation.server[name] for name in TABLES[first : first + 2])
        for y in range(K):
            found = rows[y : y + 1] if method == "fedproc" else rows[y][present[y]]
            assert len(found) == len(table[y])
            for a, b in zip(found, table[y], strict=True):
                same(a, b)
        hits = [
            sum(
                int(naive.logits(weights, x.double()).argmax()) == int(y)
                for x, y in zip(c.test.x, c.test.y, strict=True)
            )
            / len(c.test)
            for c in data.clients
        ]
        assert record.accuracy.clients["global_model"] == hits


@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 6),
    most=st.integers(1, 4),
    tau=st.sampled_from([0.02, 0.07, 1.0]),
    power=st.sampled_from([1.0, POWER]),
    share=st.sampled_from([0.0, 0.3, 0.7, 1.0]),
)
def test_the_contrast_is_that_of_two_loops(seed, n, most, tau, power, share):
    source = torch.Generator().manual_seed(seed)
    features = torch.randn(n, 5, generator=source, dtype=torch.float64)
    rows = torch.randn(K, most, 5, generator=source, dtype=torch.float64)
    present = torch.rand(K, most, generator=source) < share
    y = torch.randint(0, K, (n,), generator=source)
    found = contrast(features, Batch(features, y), rows, present, tau, power)
    table = {c: [rows[c, i] for i in range(most) if present[c, i]] for c in range(K)}
    for value, f, c in zip(found, features, y.tolist(), strict=True):
        same(value, apart(f, c, table, tau, power))
    order, lengths = torch.randperm(K, generator=source), torch.rand(K, most, 1, generator=source) + 0.5
    moved = torch.where(present.unsqueeze(-1), lengths * rows, 9.0)[order].flip(1)
    labels = order.argsort()[y]
    same(contrast(7 * features, Batch(features, labels), moved, present[order].flip(1), tau, power), found)


@given(
    seed=st.integers(0, 2**31),
    tau=st.sampled_from([0.02, 1.0]),
    power=st.sampled_from([1.0, POWER]),
    zero=st.sampled_from(["features", "rows", "both"]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_the_contrast_with_zeros_has_finite_gradients(seed, tau, power, zero, dtype):
    source = torch.Generator().manual_seed(seed)
    features = torch.randn(2, 5, generator=source, dtype=dtype) * (zero == "rows")
    rows = torch.randn(K, 2, 5, generator=source, dtype=dtype) * (zero == "features")
    features.requires_grad_()
    present, y = torch.rand(K, 2, generator=source) < 0.7, torch.randint(0, K, (2,), generator=source)
    value = contrast(features, Batch(features, y), rows, present, tau, power)
    (slope,) = torch.autograd.grad(value.sum(), features)
    assert bool(value.isfinite().all())
    assert bool(slope.isfinite().all())
    assert bool((value >= -1e-4).all())  # but for rounding


def test_alpha_falls_from_one_to_zero():
    federation = build("fedproc", rounds=3)
    shares = [federation.method.round(n).phases[0].updates[0].loss.args[0] for n in (1, 2, 3, 9)]
    assert shares == [1.0, 0.5, 0.0, 0.0]
    assert build("fedproc", rounds=1).method.round(1).phases[0].updates[0].loss.args[0] == 1.0


def test_clusters_that_do_not_fit_are_left_out():
    federation = build("fpl", rounds=1, method__clusters=1)
    rows = torch.zeros(5, 5)
    rows[:3, 0] = rows[3:, 3] = 1.0
    rows[1, 1] = rows[2, 2] = rows[4, 4] = 0.1
    uploads = [
        Upload(str(i), {"classes": torch.tensor([2]), "prototypes": row.double().unsqueeze(0)})
        for i, row in enumerate(rows)
    ]
    table = federation.method.prototypes(federation.method.first_table(), uploads)
    assert table["held"].tolist() == [[False], [False], [True], [False]]
    same(table["clusters"][2, 0], rows[:3].double().mean(0))
