"""The splits of the papers' published code, against what it printed and against a transcription of its steps."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from protofed.data import Request, partitions, resolve_options
from protofed.errors import ConfigError
from protofed_papers import authors  # noqa: F401  (registers the partition)
from support import few

PRINTED = np.loadtxt(Path(__file__).parent / "protonorm_data_dist.csv", delimiter=",", dtype=int)


def labels(each, classes=10, order=0):
    y = torch.arange(classes).repeat_interleave(each)
    return y[torch.randperm(len(y), generator=torch.Generator().manual_seed(order))]


def assign(y, clients=20, run=0, **options):
    entry = partitions.get("authors")
    request = Request(y, int(y.max()) + 1, None, clients, run)
    return entry.assign(request, resolve_options(entry.Options, options, "partition"))


def counts(y, shares):
    return np.array([torch.bincount(y[torch.cat(s.positions())], minlength=int(y.max()) + 1) for s in shares])


CIFAR10 = labels(6_000)
MNIST = torch.cat([labels(6_000), labels(1_000, order=1)])


@pytest.mark.parametrize("paper", ["protonorm", "tinyproto"])
@pytest.mark.parametrize("order", [0, 1])
def test_all_200_cells_that_protonorm_printed(paper, order):
    y = labels(6_000, order=order)
    assert np.array_equal(counts(y, assign(y, paper=paper, run=order)), PRINTED)
    assert PRINTED.sum() == len(y)


def naive(y, clients, alpha, classes):
    """What ``dataset_utils.py`` and scikit-learn's ``train_test_split`` draw from numpy's generator with seed 1."""
    draw = np.random.RandomState(1)
    y, K = y.numpy(), int(y.max()) + 1
    owned = [np.array([], dtype=int) for _ in range(clients)]
    if alpha is None:
        left = [classes] * clients
        for c in range(K):
            holders = [i for i in range(clients) if left[i] > 0]
            holders = holders[: int(np.ceil(clients / K * classes))]
            members = [p for p in range(len(y)) if y[p] == c]
            each = len(members) / len(holders)
            sizes = draw.randint(max(each / 10, 1 / K), each, len(holders) - 1).tolist()
            start = 0
            for i, size in zip(holders, [*sizes, len(members) - sum(sizes)], strict=True):
                owned[i] = np.append(owned[i], members[start : start + size])
                start += size
                left[i] -= 1
    else:
        while min(map(len, owned)) < 1:
            owned = [np.array([], dtype=int) for _ in range(clients)]
            for c in range(K):
                members = np.where(y == c)[0]
                draw.shuffle(members)
                p = draw.dirichlet(np.repeat(alpha, clients))
                p = np.array([q * (len(own) < len(y) / clients) for q, own in zip(p, owned, strict=True)])
                p = p / p.sum()
                ends = [0, *(np.cumsum(p) * len(members)).astype(int)[:-1], len(members)]
                for i in range(clients):
                    owned[i] = np.append(owned[i], members[ends[i] : ends[i + 1]])
    pairs = []
    for own in owned:
        order, test = draw.permutation(len(own)), len(own) - int(np.floor(0.75 * len(own)))
        pairs.append((own[order[test:]].tolist(), own[order[:test]].tolist()))
    return pairs


@few(
    ("classes", "clients", "alpha", "per_client"),
    [
        (10, 20, 0.1, 2),
        (10, 20, 0.5, 2),
        (100, 50, 0.1, 2),
        (10, 20, None, 2),
        (100, 20, None, 10),
        (200, 20, None, 20),
    ],
    5,
)
def test_protonorms_positions_in_order(classes, clients, alpha, per_client):
    y = labels(60, classes)
    skew = {"alpha": alpha} if alpha else {"skew": "pathological", "classes": per_client}
    shares = assign(y, clients, **skew)
    assert [(s.train.tolist(), s.test.tolist()) for s in shares] == naive(y, clients, alpha, per_client)


@pytest.mark.parametrize(("classes", "per_client", "group"), [(10, 2, 4), (100, 10, 2), (200, 20, 2)])
def test_the_pathological_split_makes_disjoint_groups_with_the_same_classes(classes, per_client, group):
    y = labels(100, classes)
    held = counts(y, assign(y, skew="pathological", classes=per_client)) > 0
    sets = [tuple(row) for row in held]
    assert all(sets.count(own) == group for own in sets)
    assert len(set(sets)) == 20 // group
    assert np.array_equal(held.sum(0), np.full(classes, group))


@settings(max_examples=15)
@given(
    each=st.integers(20, 60),
    clients=st.integers(2, 12),
    seed=st.integers(1, 99),
    alpha=st.floats(0.3, 5),
    pathological=st.booleans(),
)
def test_every_sample_is_used_exactly_once(each, clients, seed, alpha, pathological):
    y = labels(each)
    options = {"skew": "pathological", "classes": 10} if pathological else {"alpha": alpha}
    try:
        shares = assign(y, clients, seed=seed, **options)
    except ConfigError as error:
        if "cannot be divided" not in str(error):
            raise
        reject()
    used = torch.cat([part for s in shares for part in s.positions()])
    assert torch.equal(used.sort().values, torch.arange(len(y)))
    assert all(len(s.train) == int(0.75 * (len(s.train) + len(s.test))) for s in shares)


@few(("y", "training", "test_shots", "least", "most"), [(MNIST, 60_000, 40, -1, 1), (None, 50_000, 15, -1, 3)], 1)
@few("n", [3, 4, 5], 1)
def test_fedprotos_devices(y, training, test_shots, least, most, n):
    y = torch.cat([labels(5_000), labels(1_000, order=1)]) if y is None else y
    shares = assign(y, paper="fedproto", n=n, n_std=2)
    # The three draws of federated_main.py and sampling.py, with their default seed.
    draw, choice = np.random.RandomState(1234), random.Random(1234)
    ways = draw.randint(max(2, n - 2), min(10, n + 2 + 1), 20)
    shots = draw.randint(100 + least, 100 + most, 20)
    for i, share in enumerate(shares):
        own = sorted(choice.sample(range(10), ways[i]))
        members = [(y[:training] == c).nonzero().flatten().tolist() for c in own]
        tested = [[training + p for p in (y[training:] == c).nonzero().flatten().tolist()] for c in own]
        assert share.train.tolist() == [p for m in members for p in m[110 * i : 110 * i + shots[i]]]
        assert share.test.tolist() == [p for m in tested for p in m[test_shots * i : test_shots * (i + 1)]]
    parts = [p for s in shares for p in s.positions()]
    assert len(torch.cat(parts).unique()) == sum(map(len, parts))


def test_fedprotos_empty_range_on_mnist_is_k():
    shares = assign(MNIST, paper="fedproto", n_std=1)
    assert {int(n) for s in shares for n in torch.bincount(MNIST[s.train]) if n} == {100}


@pytest.mark.parametrize("skew", ["dirichlet", "pathological"])
def test_a_share_keeps_each_clients_proportions_and_order(skew):
    whole, tenth = (assign(CIFAR10, skew=skew, share=share) for share in (1.0, 0.1))
    for full, part in zip(whole, tenth, strict=True):
        assert len(part.train) == round(0.1 * len(full.train))
        kept = torch.isin(full.train, part.train)
        assert torch.equal(full.train[kept], part.train)
        exact = torch.bincount(CIFAR10[full.train], minlength=10) / 10
        assert ((torch.bincount(CIFAR10[part.train], minlength=10) - exact).abs() < 2).all()


@pytest.mark.parametrize(
    ("y", "clients", "options", "message"),
    [
        (labels(10), 4, {"paper": "fedproto"}, "70000 or 60000 images, not 100"),
        (MNIST, 60, {"paper": "fedproto"}, "lower data.clients"),
        (MNIST, 26, {"paper": "fedproto", "k": 10}, "40 test images"),
        (MNIST, 20, {"paper": "fedproto", "k": 111}, "lower data.clients or partition.k"),
        (MNIST, 20, {"paper": "fedproto", "k": 1}, "must be at least partition.n_std = 2"),
        (MNIST, 20, {"paper": "fedproto", "n": 20}, "partition.n = 20"),
        (labels(10), 20, {"skew": "pathological", "classes": 1}, "without any class|raise"),
        (labels(2), 20, {"skew": "pathological", "classes": 10}, "too few"),
        (labels(10), 20, {"alpha": 1e-9}, "partition.alpha"),
        (labels(10), 101, {}, "lower data.clients"),
        (labels(10), 4, {"paper": "gfpl"}, "paper"),
        (labels(10), 4, {"share": 0.0}, "share"),
    ],
)
def test_what_the_code_cannot_divide(y, clients, options, message):
    with pytest.raises(ConfigError, match=message):
        assign(y, clients, **options)
