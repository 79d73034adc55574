"""Lower bounds of ε by canaries, in one run: Steinke, Nasr and Jagielski, NeurIPS 2023, Algorithm 1."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import binom
from torch import Tensor


def lower_bound(scores: Tensor, present: Tensor, delta: float, guesses: int, confidence: float = 0.95) -> float:
    """Return an ε that the mechanism exceeds with the given confidence; 0 if nothing is proven.

    Args:
        scores: ``(m,)``, larger for canaries that rather were there.
        present: ``(m,)`` bool, the truth, by independent fair coins.
        delta: ``δ``.
        guesses: Number of guesses: half on the largest scores, half on the smallest.
        confidence: ``1 − β``.
    """
    m, order = len(scores), scores.argsort()
    right = int((~present[order[: guesses // 2]]).sum() + present[order[m - guesses // 2 :]].sum())
    fewer = np.arange(1, guesses + 1)
    low, high = 0.0, 50.0
    for _ in range(30):
        middle = (low + high) / 2
        p = 1 / (1 + math.exp(-middle))
        # Theorem 5.2: the tail of a binomial, and what δ adds to it.
        tail = binom.sf(right - 1, guesses, p)
        added = ((binom.sf(right - fewer - 1, guesses, p) - tail) / fewer).max()
        if tail + 2 * m * delta * added <= 1 - confidence:
            low = middle
        else:
            high = middle
    return low
