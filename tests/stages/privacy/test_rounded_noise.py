"""Noise that is drawn exactly: every number has the probability of the real Gaussian, and low bits tell nothing."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm

from protofed.compute import normal
from protofed.compute.normal import DIGITS, draw_rounded_normal, transform_pairs
from protofed.errors import PayloadError
from protofed.visits.private import FINE, Noise
from support import few

WORDS = np.random.default_rng(3).integers(0, 2**64, (2, 3000), dtype=np.uint64)


def naive(words: np.ndarray, deviation: float) -> list[int]:
    """Marsaglia's method with 60 digits, pair by pair."""
    found = []
    with mpmath.workdps(60):
        for pair in words.T:
            u = [(2 * mpmath.mpf(int(word) >> 1) + 1) / mpmath.mpf(2) ** (DIGITS + 1) for word in pair]
            s = u[0] ** 2 + u[1] ** 2
            if s >= 1:
                continue
            factor = mpmath.mpf(deviation) * mpmath.sqrt(-2 * mpmath.log(s) / s)
            for x, word in zip(u, pair, strict=True):
                found.append(int(mpmath.floor(x * factor + 0.5)) * (-1 if int(word) & 1 else 1))
    return found


@few("deviation", [0.3, 7.5, 1.3 * 2.0**20, 2.0**33], 2)
def test_numbers_are_those_of_the_naive_sampler(deviation):
    words = WORDS[:, : 300 if deviation > 2**30 else None]
    assert transform_pairs(words, deviation).tolist() == naive(words, deviation)


@few("where", ["middle", "edge", "all"], 1)
def test_float64_and_decimals_agree(where, monkeypatch):
    """Where float64 decides, it decides as decimals do: with a margin that decides nothing, decimals do it all."""
    scale = {"middle": 1.0, "edge": 2.0**-7.5, "all": 1.0}[where]
    words = (WORDS[:, :300].astype(object) * int(2**20 * scale) // 2**20).astype(np.uint64)
    if where == "edge":  # just above the least s that float64 decides, and just below the largest
        angle, near = np.linspace(0.1, 1.4, 300), np.tile([2.0**-15, 1 - 2.0**-15], 150)
        point = np.sqrt(near) * np.stack([np.cos(angle), np.sin(angle)])
        words = (point * 2.0**DIGITS).astype(np.uint64) << np.uint64(1)
    by_floats = transform_pairs(words, 1.7 * 2.0**20)
    monkeypatch.setattr(normal, "SLACK", 2.0)
    assert np.array_equal(by_floats, transform_pairs(words, 1.7 * 2.0**20))


def test_digits_are_drawn_until_the_number_is_known(monkeypatch):
    """A point next to a boundary, in the corner that float64 cannot see, and one that may be in the disc or not."""
    drawn = []

    def bits(n: int) -> bytes:
        drawn.append(n)
        return random.Random(len(drawn)).randbytes(n)

    monkeypatch.setattr(normal.os, "urandom", bits)
    assert normal.compute_exactly([2**62, 2**61], 2.0**20) is not None
    assert not drawn
    assert normal.compute_exactly([2**62, 2**61], 2.0**90) is not None  # more digits of the result than were given
    assert len(drawn) == 1
    far = normal.compute_exactly([0, 0], 1.0)  # s < 2^-124: the far tail, of which float64 knows nothing
    assert far is not None
    assert max(far) > 10
    assert len(drawn) > 1
    before = len(drawn)
    border = math.isqrt(2**126 - (2**62) ** 2)  # on the circle, up to the last digit
    assert normal.compute_exactly([2**62, border], 1.0) in (None, [0, 0])
    assert len(drawn) > before
    assert normal.compute_exactly([2**63 - 1, 2**62], 1.0) is None


@few("deviation", [0.6, 2.5], 1)
def test_every_whole_number_has_the_probability_of_its_interval(deviation):
    n, most = 200_000, math.ceil(2.5 * deviation)  # the ends are found hundreds of times
    found = draw_rounded_normal(n, deviation).clamp(-most, most)
    counts = torch.bincount(found + most, minlength=2 * most + 1).numpy()
    edges = [-math.inf, *(k + 0.5 for k in range(-most, most)), math.inf]
    expected = n * np.diff(norm.cdf(edges, scale=deviation))
    assert ((counts - expected) ** 2 / expected).sum() < chi2.isf(1e-6, len(counts) - 1)


def test_fine_noise_is_normal():
    sigma, n = 1.3 * 2.0**FINE, 200_000
    x = draw_rounded_normal(n, sigma).double() / sigma
    counts = np.histogram(x, norm.ppf(np.linspace(0, 1, 101)))[0]
    assert ((counts - n / 100) ** 2 / (n / 100)).sum() < chi2.isf(1e-6, 99)
    # The last digits are as good as coins, and neighbours are independent.
    last = torch.bincount(draw_rounded_normal(n, sigma) % 16, minlength=16).numpy()
    assert ((last - n / 16) ** 2 / (n / 16)).sum() < chi2.isf(1e-6, 15)
    assert all(abs(float((a * b).mean())) < 5 / math.sqrt(n) for a, b in pairwise([x, x.roll(1), x.roll(2)]))
    assert not torch.equal(draw_rounded_normal(9, sigma), draw_rounded_normal(9, sigma))


@pytest.mark.parametrize("n", [0, 1, 2, 5])
def test_so_many_as_were_asked_for(n):
    assert draw_rounded_normal(n, 3.0).shape == (n,)
    assert draw_rounded_normal(n, 3.0).dtype == torch.int64


def finer(values: torch.Tensor, digits: int) -> torch.Tensor:
    """Return which values are not whole multiples of ``2^-digits``."""
    scaled = values * 2.0**digits
    return scaled != scaled.round()


def test_low_bits_gave_away_what_was_added_and_do_no_more():
    """The attack: a number near zero with bits below 2^-53 cannot be 1 plus noise, and often is 0 plus noise.

    The released numbers are looked at, not the noise. Of a sum in floating-point numbers, the attack is certain of
    a third of all results near zero, which no ε allows.
    """
    told = {}
    for kind, noise in {
        "float": Noise(torch.Generator().manual_seed(1), torch.float64),
        "exact": Noise(None),
    }.items():
        for added in (0.0, 1.0):
            released = noise.add(torch.full((100_000,), added, dtype=torch.float64), 1.0)
            near = released[released.abs() < 0.25]
            assert len(near) > 5000
            told[kind, added] = float(finer(near, 53).double().mean())
    assert told["float", 0.0] > 0.3
    assert told["float", 1.0] == told["exact", 0.0] == told["exact", 1.0] == 0.0


@few("deviation", [0.3, 1.0, 5e4], 1)
def test_what_may_come_out_does_not_depend_on_the_data(deviation):
    """All results are multiples of one step, and every multiple near either neighbour can come from both."""
    noise = Noise(None)
    step = noise.step(deviation)
    assert 2.0**-FINE * deviation / 2 < step <= 2.0**-FINE * deviation
    for record in (0.0, 0.7 * deviation):
        contribution = math.trunc(record / step) * step
        released = noise.add(torch.full((5000,), 3 * step + contribution, dtype=torch.float64), deviation)
        assert torch.equal((released / step).round() * step, released)
        assert 0.9 < float(released.std()) / deviation < 1.1


def test_noise_of_a_client_is_drawn_exactly(monkeypatch):
    from protofed.stages.privacy import noise

    asked = []
    monkeypatch.setattr(noise, "draw_rounded_normal", lambda n, s: asked.append((n, s)) or torch.arange(n) - 1)
    drawn = noise.OwnNoise(2.0**20, 1).draw(5, 3)
    assert asked == [(3, 2.0**19)]
    assert drawn.view(np.int64).tolist() == [-1, 0, 1]
    with pytest.raises(PayloadError, match=r"noise: a standard deviation of 0\.5 steps"):
        noise.OwnNoise(1.0, 1).draw(5, 3)
