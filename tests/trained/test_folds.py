"""Closed forms judged by folds."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from protofed.methods.fedlda import FedLDAOptions
from protofed.samples import ClientData, Samples
from protofed.trained.folds import FOLDS, SiteSamples, divide, judge, judge_anywhere
from protofed.trained.paired import Sampled, two_level
from support import client, degenerate, few

K, D = 3, 6


def drawn(seed: int, n: int, place: int = 0, shift: float = 0.0) -> Samples:
    """Return samples of three classes, of which a site has one more often than the others."""
    drawing = np.random.default_rng(seed)
    y = drawing.choice(K, n, p=np.roll([0.6, 0.2, 0.2], place))
    means = np.eye(K, D) * 1.2 + shift * np.random.default_rng(place).normal(size=(K, D))
    return Samples(torch.from_numpy(means[y] + drawing.normal(size=(n, D))), torch.from_numpy(y))


def site(place: int, seed: int, n: int, shift: float = 0.0, draws: int = 3) -> SiteSamples:
    samples = drawn(seed, n, place, shift)
    return divide(ClientData(f"s{place}", samples, samples.at(slice(0))), draws, seed, given=False)


@given(st.lists(st.integers(0, 3), max_size=60), st.integers(0, 9))
def test_every_fold_has_its_share_of_each_class(labels, seed):
    y = torch.tensor(labels, dtype=torch.int64)
    samples = Samples(torch.zeros(len(y), 2), y)
    found = divide(ClientData("a", samples, samples.at(slice(0))), 2, seed, given=False)
    assert bool(found.shared.all())
    for folds in found.folds:
        for k in range(4):
            own = folds[y == k]
            assert len(own) == 1 or bool((own >= 0).all()), "only what its class consists of is never judged"
            sizes = own[own >= 0].bincount(minlength=FOLDS)
            assert int(sizes.max() - sizes.min()) <= 1
        sizes = folds[folds >= 0].bincount(minlength=FOLDS)
        assert int(sizes.max() - sizes.min()) <= 1


def test_samples_that_were_set_aside_are_the_only_fold():
    held = client("ann", [0, 0, 1, 1, 2])
    found = divide(held, 3, 0, given=True)
    assert int(found.judged.sum()) == len(held.test)
    assert torch.equal(found.x[found.shared], held.train.x)
    assert torch.equal(found.y[found.judged], held.test.y)


def test_what_is_left_out_of_a_site_is_the_others_no_longer():
    """A fold's answers are those of a split with that fold as the test samples."""
    sites = [site(place, place, 25, draws=1) for place in range(3)]
    found = judge(sites, K, FedLDAOptions())
    one = sites[1]
    for fold in (0, 7):
        out = one.folds[0] == fold
        alike = [*sites]
        alike[1] = one._replace(folds=torch.where(out, 0, -1).unsqueeze(0), shared=~out)
        split = judge(alike, K, FedLDAOptions())
        for name in ("alone", "together"):
            assert (getattr(split, name)[1][0] == getattr(found, name)[1][0][out[one.judged].numpy()]).all()


def test_no_site_is_too_small_to_be_judged():
    sites = [divide(each, 2, 0, given=False) for each in degenerate().clients]
    found = judge(sites, 4, FedLDAOptions())
    every = judge_anywhere(sites, 4, FedLDAOptions())
    for held, alone, anywhere in zip(sites, found.alone, every, strict=True):
        assert alone.shape == anywhere.shape == (2, int(held.judged.sum()))


@few("shift", [0.0, 0.5], 0)
def test_intervals_hold_the_truth_as_often_as_they_say(shift):
    """The truth is the mean accuracy of the same classifiers on many more samples.

    Over 100 federations and four sites of 40 samples the share is known to ±2 points.
    """
    held = total = 0
    everything = [drawn(90 + place, 4000, place, shift) for place in range(4)]
    for number in range(100):
        sites = [site(place, 10 * number + place, 40, shift) for place in range(4)]
        found = judge(sites, K, FedLDAOptions())
        wide = []
        for one, many in zip(sites, everything, strict=True):
            x, y = torch.cat([one.x, many.x]), torch.cat([one.y, many.y])
            seen = torch.arange(len(y)) < len(one.y)
            out = torch.where(seen, -1, 0)
            out[torch.arange(len(one.y))[one.folds[0] == 0]] = 0
            wide.append(one._replace(x=x, y=y, folds=out.unsqueeze(0), shared=seen & (out < 0)))
        true = judge(wide, K, FedLDAOptions())
        for place in range(4):
            truth = 100 * float((true.together[place] - true.alone[place]).mean())
            d = (found.together[place] - found.alone[place]).mean(0)
            value = Sampled.difference(len(d), float(d.sum()), float((d * d).sum()))
            wider = value._replace(variance=value.variance * FOLDS / (FOLDS - 1))
            _, low, high = two_level([wider])
            held += low <= truth <= high
            total += 1
    assert 0.93 <= held / total <= 0.98
