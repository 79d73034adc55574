"""Gaussian noise of whole numbers: ``round(σ·Z)`` for ``Z ~ N(0, 1)``, drawn exactly, from the system's randomness.

A floating-point Gaussian has gaps in its low bits and ends where its uniform numbers do, which tells what was added
(Mironov, "On significance of the least significant bits for differential privacy", CCS 2012; Jin et al., "Are we
there yet? Timing and floating-point attacks on differential privacy systems", S&P 2022). Here a uniform number is a
real number of which as many digits are drawn as its rounded result needs, so every whole number has exactly the
probability that the real Gaussian gives its interval. Since ``s + round(σZ) = round(s + σZ)`` for a whole ``s``,
such noise on whole numbers is post-processing of the Gaussian mechanism, and all that holds for that holds for it.

From a uniform point ``(u, v)`` of the unit disc, Marsaglia's polar method makes ``u·√(−2 ln s/s)`` and
``v·√(−2 ln s/s)``, with ``s = u² + v²``. Float64 decides where its error cannot matter, decimals elsewhere.
"""

from __future__ import annotations

import decimal
import math
import os

import numpy as np
import torch
from numpy.typing import NDArray

DIGITS = 63
"""Binary digits of a uniform number that are drawn at first, beside its sign; and again, as often as needed."""
EDGE = 2.0**-16  #: Distance of ``s`` from 0 and 1 below which float64 does not decide
SLACK = 2.0**-42
"""Bound of the error in float64, ``SLACK·(1 + 1/√(−2 ln s))`` before it is multiplied by σ: more than eight times
that of rounding and of missing digits, if logarithms and roots are right within 100 units in the last place."""
AT_ONCE = 2**16  #: Pairs that are drawn at a time


def draw_rounded_normal(n: int, deviation: float) -> torch.Tensor:
    """Return ``(n,)`` int64 ``round(σ·Z)``, σ ≤ 2^48, from the operating system's randomness (not reproducible)."""
    found = [np.empty(0, dtype=np.int64)]
    missing = n
    while missing > 0:
        pairs = min(AT_ONCE, 0.65 * missing + 16)  # π/4 of all pairs are in the disc
        words = np.frombuffer(os.urandom(16 * int(pairs)), dtype="<u8").reshape(2, -1)
        found.append(transform_pairs(words, deviation)[:missing])
        missing -= len(found[-1])
    return torch.from_numpy(np.concatenate(found))


def transform_pairs(words: NDArray[np.uint64], deviation: float) -> NDArray[np.int64]:
    """Return two numbers for each pair of 64 random bits, of shape ``(2, P)``, whose point is in the disc."""
    sizes = ((words >> np.uint64(1)).astype(np.float64) + 0.5) * 2.0**-DIGITS
    s = (sizes * sizes).sum(0)
    near = s < 1 + EDGE
    words, sizes, s = words[:, near], sizes[:, near], s[near]
    clear = (s > EDGE) & (s < 1 - EDGE)
    radius = np.sqrt(-2 * np.log(np.where(clear, s, 0.5)))
    above = sizes * (deviation * radius / np.sqrt(s)) + 0.5
    margin = deviation * SLACK * (1 + 1 / radius)
    numbers = np.floor(above)
    over = above - numbers
    sure = clear & ((over > margin) & (over < 1 - margin)).all(0)
    inside = np.ones(len(s), dtype=bool)
    for place in np.flatnonzero(~sure):
        pair = compute_exactly([int(word) >> 1 for word in words[:, place]], deviation)
        inside[place] = pair is not None
        numbers[:, place] = pair or 0
    numbers[(words & np.uint64(1)).astype(bool)] *= -1
    found: NDArray[np.int64] = numbers[:, inside].T.reshape(-1).astype(np.int64)
    return found


def compute_exactly(digits: list[int], deviation: float) -> list[int] | None:
    """Return the two numbers, without signs, of a point whose first digits are given; None outside the disc.

    Both coordinates are known to lie in intervals. Where these leave a result open, more digits are drawn.
    """
    known = DIGITS
    while True:
        with decimal.localcontext(prec=40 + 2 * known):
            # Squares have 2·known digits and are exact; all else has relative errors far below ``tiny``.
            tiny, unit = decimal.Decimal(10) ** -known, decimal.Decimal(2) ** -known
            low, high = [d * unit for d in digits], [(d + 1) * unit for d in digits]
            least, most = (sum((x * x for x in corner), decimal.Decimal()) for corner in (low, high))
            if least >= 1:
                return None
            if least > 0 and most <= 1:
                factors = [decimal.Decimal(deviation) * (-2 * s.ln() / s).sqrt() for s in (most, least)]
                lows = [_round_half_even(x * factors[0] * (1 - tiny)) for x in low]
                if lows == [_round_half_even(x * factors[1] * (1 + tiny)) for x in high]:
                    return lows
        more = int.from_bytes(os.urandom(2 * DIGITS), "little")  # 2·8·DIGITS bits, of which 2·DIGITS are used
        digits = [digits[0] << DIGITS | more % 2**DIGITS, digits[1] << DIGITS | (more >> DIGITS) % 2**DIGITS]
        known += DIGITS


def _round_half_even(x: decimal.Decimal) -> int:
    return math.floor(x + decimal.Decimal("0.5"))
