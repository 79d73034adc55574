"""Centring: offsets of clients are those of an analysis of variance, and every party knows the same ones."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from protofed.errors import ConfigError
from protofed.experiments.assemble import assemble
from protofed.methods import Local
from protofed.methods.parts.centring import PSEUDO, centre_sums, means_apart, move_sums, offset
from protofed.methods.parts.moments import Sums
from protofed.rounds.loop import Federation
from protofed.samples import ClientData, FederatedData, Samples
from support import EXACT, experiment, few, one_line

K, D = 3, 4


def site(seed: int, labels: list[int], apart: float) -> Samples:
    """Return samples of common class means, all of them moved alike by an offset of the site's own."""
    g = torch.Generator().manual_seed(seed)
    means = 4 * torch.eye(K, D, dtype=torch.float64)
    y = torch.tensor(labels, dtype=torch.int64)
    moved_by = apart * torch.randn(D, generator=g, dtype=torch.float64)
    return Samples(means[y] + torch.randn(len(y), D, generator=g, dtype=torch.float64) + moved_by, y)


def federation_of(parts: list[Samples], validation: Samples | None = None, **overrides: object) -> Federation:
    clients = [ClientData(f"c{i}", own, own, validation and own) for i, own in enumerate(parts)]
    data = FederatedData(tuple(clients), K, tuple("abc"), (D,))
    return assemble(experiment("fedlda", **{**EXACT, "method__centre": True, **overrides}), data)[0]


def naive(parts: list[Samples]) -> tuple[np.ndarray, np.ndarray]:
    """Return ``a`` and ``b`` by least squares over all samples, with λ rows that pull each offset to 0."""
    M = len(parts)
    rows, targets = [], []
    for i, part in enumerate(parts):
        for x, y in zip(part.x.numpy(), part.y.tolist(), strict=True):
            row = np.zeros(K + M)
            row[y] = row[K + i] = 1
            rows.append(row)
            targets.append(x)
        pull = np.zeros(K + M)
        pull[K + i] = PSEUDO**0.5
        rows.append(pull)
        targets.append(np.zeros(D))
    found = np.linalg.lstsq(np.array(rows), np.array(targets), rcond=None)[0]
    return found[:K], found[K:]


LABELS = st.lists(st.lists(st.integers(0, K - 1), max_size=8), min_size=1, max_size=5)


@settings(max_examples=30)
@given(LABELS, st.integers(0, 99))
def test_offsets_are_those_of_least_squares(labels, seed):
    labels = [*labels, [0, 1, 2]]  # somebody holds each class
    parts = [site(seed + i, own, 3.0) for i, own in enumerate(labels)]
    sums = [Sums.of(part.x, part.y, K, second=True) for part in parts]
    total = Sums(*(torch.stack(part).sum(0) for part in zip(*sums, strict=True)))
    counts, firsts = [s.counts for s in sums], [s.sums.sum(0) for s in sums]
    means = means_apart(torch.stack(counts), torch.stack(firsts), total.sums)
    a, b = naive(parts)
    np.testing.assert_allclose(means, a, atol=1e-9)
    offsets = [offset(own, means) for own in sums]
    np.testing.assert_allclose(torch.stack(offsets), b, atol=1e-9)
    together = centre_sums(total, counts, firsts)
    x = torch.cat([part.x - by for part, by in zip(parts, offsets, strict=True)])
    expected = Sums.of(x, torch.cat([part.y for part in parts]), K, second=True)
    each = [move_sums(own, by) for own, by in zip(sums, offsets, strict=True)]
    for found, wanted, added in zip(together, expected, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-8)
        torch.testing.assert_close(torch.stack(added).sum(0), wanted, rtol=1e-9, atol=1e-8)
    torch.testing.assert_close(together.means.rows, means, rtol=1e-9, atol=1e-9)  # what a client is told


def test_the_classifier_is_the_discriminant_of_centred_samples():
    parts = [site(i, [0, 1, 2] * 8, 5.0) for i in range(4)]
    federation = federation_of(parts, method__shrinkage=0.0, method__personal=False)
    list(federation.run())
    _, b = naive(parts)
    x = np.concatenate([part.x.numpy() - by for part, by in zip(parts, b, strict=True)])
    y = np.concatenate([part.y.numpy() for part in parts])
    reference = LinearDiscriminantAnalysis(solver="lsqr", priors=[1 / 3] * 3).fit(x, y)
    for i, by in enumerate(b):
        received = federation.executor.clients.snapshot(f"c{i}").received
        scores = (parts[i].x @ received["weights"].T + received["bias"]).numpy()
        expected = (parts[i].x.numpy() - by) @ reference.coef_.T + reference.intercept_
        np.testing.assert_allclose(scores - scores[:, :1], expected - expected[:, :1], atol=1e-6)


@few("skewed", [False, True], 2)
def test_it_helps_where_sites_are_apart_and_costs_nothing_where_not(skewed):
    labels = [[0] * 20 + [1] * 20 + [2] * 20] * 6
    if skewed:
        labels = [[i % 3] * 40 + [(i + 1) % 3] * 8 + [(i + 2) % 3] * 2 for i in range(6)]

    def accuracy(apart: float, centre: bool) -> float:
        parts = [site(i, own, apart) for i, own in enumerate(labels)]
        records = federation_of(parts, method__centre=centre, method__personal=False).run()
        return list(records)[-1].accuracy.weighted["global_model"]

    assert accuracy(6.0, True) > accuracy(6.0, False) + 0.02
    assert accuracy(0.0, True) >= accuracy(0.0, False) - 0.02


def test_others_are_what_the_server_counted_without_oneself():
    """What a client mixes with is the others' centred samples, and their scatter within each client."""
    parts = [site(i, [0, 0, 0, 1, 1, 1, 2, 2, 2] * 3, 4.0) for i in range(3)]
    federation = federation_of(parts, method__shrinkage=0.1)
    list(federation.run())
    message = federation.method.broadcast(federation.server, 2)
    sums = [Sums.of(part.x, part.y, K, second=True) for part in parts]
    _, b = naive(parts)
    each = [move_sums(own, torch.tensor(by)) for own, by in zip(sums, b, strict=True)]
    local = Local("c0", 2, None, sums[0].counts.long(), {"sent": torch.tensor(True)}, {}, None, 0)
    found = federation.method.pools(local, each[0], message, torch.tensor(b[0]))
    for one, other in zip(found.others, each[1].plus(each[2]), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(found.within, sums[1].scatter + sums[2].scatter, rtol=1e-6, atol=1e-5)


@few(
    "overrides",
    [
        {"secure__aggregation": True},
        {"privacy__mode": "sample", "privacy__epsilon": 8.0, "encoder__name": "identity", "encoder__unit": True},
    ],
    2,
)
def test_what_cannot_be_centred_is_refused_in_one_line(overrides):
    parts = [site(i, [0, 1, 2] * 4, 1.0) for i in range(3)]
    with one_line(ConfigError, r"fedlda|secure|sums") as caught:
        federation_of(parts, method__personal=False, **overrides)
    print(caught.value)
