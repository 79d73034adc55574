from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from protofed.prototypes.contrastive import (
    adaptive_margin,
    contrast,
    hinge_prototypes,
    pair_margins,
    prototype_network,
    train_prototypes,
)
from protofed.prototypes.geometry import pairwise_distances
from support import few

pytestmark = pytest.mark.fast


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def uploads(n: int = 11, K: int = 4, d: int = 3, seed: int = 0):
    g = generator(seed)
    labels = torch.randint(0, K, (n,), generator=g)
    centres = 3 * torch.randn(K, d, generator=g, dtype=torch.float64)
    return centres[labels] + torch.randn(n, d, generator=g, dtype=torch.float64), labels


def naive_margin(prototypes, labels, cap):
    Q = {
        int(y): sum(p for p, label in zip(prototypes, labels, strict=True) if label == y) / int((labels == y).sum())
        for y in labels
    }
    gaps = [min(math.dist(Q[c], Q[other]) for other in Q if other != c) for c in Q]
    return min(max(gaps), cap)


@pytest.mark.parametrize("cap", [100.0, 1.5])
@pytest.mark.parametrize("seed", range(4))
def test_margin_equals_the_loop(seed, cap):
    prototypes, labels = uploads(seed=seed)
    assert adaptive_margin(prototypes, labels, 7, cap) == pytest.approx(naive_margin(prototypes, labels, cap))


def test_margin_of_a_single_class_is_the_cap():
    assert adaptive_margin(torch.randn(3, 2), torch.tensor([1, 1, 1]), 4, cap=9.0) == 9.0


def acl_loss(prototypes, labels, P, margin):
    distances = pairwise_distances(prototypes, P)
    return F.cross_entropy(-(distances + margin * F.one_hot(labels, len(P))), labels)


class Network(nn.Module):
    """The server's network as FedTGP describes it."""

    def __init__(self, state):
        super().__init__()
        K, d = state.embedding.shape
        self.embedding, self.first, self.second = nn.Embedding(K, d), nn.Linear(d, d), nn.Linear(d, d)
        self.double()
        for parameter, value in zip(self.parameters(), state, strict=True):
            parameter.data.copy_(value)

    def forward(self):
        return self.second(F.relu(self.first(self.embedding.weight)))


@pytest.mark.parametrize(("n", "K", "d", "batch_size"), [(11, 4, 3, 4), (30, 5, 16, 32), (7, 1, 2, 1)])
def test_training_equals_autograd_and_torch_sgd(n, K, d, batch_size):
    prototypes, labels = uploads(n, K, d)
    start = prototype_network(K, d, generator=generator(2), dtype=torch.float64)
    before = [parameter.clone() for parameter in start]
    trained = train_prototypes(
        start, prototypes, labels, contrast(1.5), epochs=6, lr=0.05, batch_size=batch_size, generator=generator(3)
    )

    network, g = Network(start), generator(3)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05)
    losses = []
    for _ in range(6):
        total = 0.0
        for batch in torch.randperm(n, generator=g).split(batch_size):
            loss = acl_loss(prototypes[batch], labels[batch], network(), 1.5)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            total += float(loss.detach()) * len(batch)
        losses.append(total / n)

    torch.testing.assert_close(trained.losses, torch.tensor(losses, dtype=torch.float64))
    for parameter, expected in zip(trained.network, network.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected.data, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(trained.prototypes, network().detach())
    assert all(torch.equal(old, parameter) for old, parameter in zip(before, start, strict=True))


def test_training_continues_where_it_stopped():
    prototypes, labels = uploads()
    start = prototype_network(4, 3, generator=generator(), dtype=torch.float64)
    g = generator(1)
    half = train_prototypes(start, prototypes, labels, contrast(1.0), epochs=2, generator=g)
    rest = train_prototypes(half.network, prototypes, labels, contrast(1.0), epochs=3, generator=g)
    whole = train_prototypes(start, prototypes, labels, contrast(1.0), epochs=5, generator=generator(1))
    assert torch.equal(whole.prototypes, rest.prototypes)
    assert torch.equal(whole.losses, torch.cat([half.losses, rest.losses]))


def test_initial_parameters_are_torchs():
    state = prototype_network(200, 100, generator=generator(), dtype=torch.float32)
    assert abs(float(state.embedding.std()) - 1) < 0.02
    for parameter in state[1:]:
        assert 0.09 < float(parameter.abs().max()) <= 0.1
        assert float(parameter.std()) == pytest.approx(0.1 / math.sqrt(3), rel=0.15)


@given(seed=st.integers(0, 1000), n=st.integers(1, 8), same=st.booleans(), classes=st.integers(1, 3))
def test_degenerate_uploads_stay_finite(seed, n, same, classes):
    prototypes = torch.randn(n, 2, generator=generator(seed)) * (0 if same else 1)
    labels = torch.arange(n) % classes
    margin = adaptive_margin(prototypes, labels, 5)
    start = prototype_network(5, 2, generator=generator(seed), dtype=torch.float32)
    trained = train_prototypes(
        start, prototypes, labels, contrast(margin), epochs=3, batch_size=2, generator=generator()
    )
    assert trained.prototypes.isfinite().all()
    assert trained.losses.isfinite().all()
    found = hinge_prototypes(prototypes, labels, 5, iterations=30)
    assert found.prototypes.isfinite().all()
    assert found.present.tolist() == [bool((labels == c).any()) for c in range(5)]


# --- the hinge variant --------------------------------------------------------------------------------------


def naive_hinge(prototypes, labels, g, m):
    total = sum(math.dist(g[y], p) ** 2 for p, y in zip(prototypes, labels.tolist(), strict=True))
    for j in range(len(g)):
        for k in range(len(g)):
            if j != k:
                total += max(0.0, float(m[j, k]) - math.dist(g[j], g[k])) ** 2
    return total


def test_margins_are_larger_for_closer_pairs_and_scale_with_the_features():
    means = torch.tensor([[0.0], [1.0], [4.0], [9.0]])
    m = pair_margins(means, 1.0)
    distances = torch.cdist(means, means)
    pairs = [(j, k) for j in range(4) for k in range(j)]
    by_distance = sorted(pairs, key=lambda pair: float(distances[pair]))
    ordered = [float(m[pair]) for pair in by_distance]
    assert ordered == sorted(ordered, reverse=True)
    torch.testing.assert_close(pair_margins(7 * means, 3.0), 21 * m)
    average = sum(float(distances[pair]) for pair in pairs) / len(pairs)
    assert all((float(m[pair]) > distances[pair]) == (distances[pair] < average) for pair in pairs)


@pytest.mark.slow
@few("margin", [0.5, 1.0, 2.0], 1)
def test_hinge_minimum_beats_gradient_descent(margin):
    prototypes, labels = uploads(20, 4, 3, seed=6)
    found = hinge_prototypes(prototypes, labels, 4, margin=margin, iterations=3000, tolerance=0.0)
    assert all(later <= earlier + 1e-9 for earlier, later in zip(found.losses, found.losses[1:], strict=False))

    means = torch.stack([prototypes[labels == c].mean(0) for c in range(4)])
    m = pair_margins(means, margin)
    g = means.clone().requires_grad_()
    optimiser = torch.optim.SGD([g], lr=0.01)
    for _ in range(3000):
        optimiser.zero_grad()
        shortfall = (m - torch.cdist(g, g)).clamp(min=0.0).fill_diagonal_(0.0)
        ((g[labels] - prototypes).square().sum() + shortfall.square().sum()).backward()
        optimiser.step()
    best = naive_hinge(prototypes, labels, g.detach(), m)
    assert found.losses[-1] == pytest.approx(naive_hinge(prototypes, labels, found.prototypes, m))
    assert found.losses[-1] <= best * (1 + 1e-6)


def test_hinge_without_margin_returns_the_means():
    prototypes, labels = uploads()
    found = hinge_prototypes(prototypes, labels, 6, margin=0.0)
    for c in range(6):
        expected = prototypes[labels == c].mean(0) if (labels == c).any() else torch.zeros(3, dtype=torch.float64)
        torch.testing.assert_close(found.prototypes[c], expected)


def test_hinge_parts_coinciding_means():
    prototypes = torch.tensor([[1.0, 0.0], [1.0, 0.0], [3.0, 0.0]])
    found = hinge_prototypes(prototypes, torch.arange(3), 3)
    assert torch.equal(found.prototypes, hinge_prototypes(prototypes, torch.arange(3), 3).prototypes)
    assert math.dist(found.prototypes[0], found.prototypes[1]) > 1
