import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protofed.compute.seeding import generator
from protofed.data import DataOptions
from protofed.data.partition import apportion, hold_out, limit_training, subset

pytestmark = pytest.mark.fast

labels = st.lists(st.integers(0, 5), max_size=80).map(lambda v: torch.tensor(v, dtype=torch.int64))
fractions = st.floats(0, 0.95)


@given(labels, fractions, st.integers(0, 5))
def test_hold_out_is_a_stratified_split(y, fraction, seed):
    kept, held = hold_out(y, fraction, generator(seed, "t"))
    assert torch.equal(torch.cat([kept, held]).sort().values, torch.arange(len(y)))
    for c in y.unique().tolist():
        n, taken = int((y == c).sum()), int((y[held] == c).sum())
        assert taken <= n - 1, "every class keeps a sample"
        assert abs(taken - fraction * n) <= 1


@given(st.lists(st.integers(4, 30), min_size=1, max_size=6), st.sampled_from([0.1, 0.25, 0.5]))
def test_held_out_size_is_exact_without_tiny_classes(counts, fraction):
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    _, held = hold_out(y, fraction, generator(0, "t"))
    assert len(held) == round(len(y) * fraction)


def test_equal_remainders_do_not_favour_a_class():
    # Ten classes of two samples, a quarter held out: five classes give one each.
    y = torch.arange(10).repeat_interleave(2)
    total = torch.zeros(10)
    for seed in range(200):
        _, held = hold_out(y, 0.25, generator(seed, "t"))
        total += torch.bincount(y[held], minlength=10)
    assert total.sum() == 1000
    assert total.min() > 60
    assert total.max() < 140


@given(labels.filter(len), st.data())
def test_subset_has_the_size_asked_for_and_the_shares_of_the_whole(y, data):
    size = data.draw(st.integers(1, len(y)))
    rows = subset(y, size, generator(0, "t"))
    assert len(rows.unique()) == len(rows) == size
    for c in y.unique().tolist():
        assert abs(int((y[rows] == c).sum()) - size * float((y == c).double().mean())) <= 1


@given(labels, st.integers(0, 40), st.integers(0, 3))
def test_a_limit_of_training_samples(y, limit, seed):
    """None is left out below it; above it, exactly as many remain, with each class's share to within one sample."""
    options = DataOptions(train_samples=limit)
    rows = limit_training(y, options, seed, "ann")
    if limit in range(1, len(y)):
        assert len(rows) == limit
        for c in y.unique().tolist():
            assert abs(int((y[rows] == c).sum()) - limit * float((y == c).double().mean())) <= 1
    else:
        assert torch.equal(rows, torch.arange(len(y)))
    assert bool((rows.diff() > 0).all())
    assert torch.equal(rows, limit_training(y, options, seed, "ann"))


def test_the_rest_differs_between_seeds_and_clients():
    y, options = torch.zeros(50, dtype=torch.int64), DataOptions(train_samples=25)
    chosen = [limit_training(y, options, seed, name).tolist() for seed in (0, 1) for name in ("ann", "bob")]
    assert len({tuple(rows) for rows in chosen}) == 4


def test_apportion_gives_what_caps_allow():
    caps = torch.tensor([1, 5, 0])
    got = apportion(torch.tensor([2.5, 2.5, 0.4]).double(), 5, caps, generator(0, "t"))
    assert got.tolist() == [1, 3, 0]
