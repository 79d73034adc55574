"""Noise of the server: repeatable in a simulation, from the system's randomness in a deployment."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from protofed.seeding import generator, normal_from_system

Source = Callable[[int, int], Tensor]
"""Returns ``n`` standard normal numbers, ``(n,)`` float64; arguments are the round and ``n``."""


def from_seed(seed: int, *scope: str | int) -> Source:
    """Return a source whose numbers follow from a seed, so that a simulation can be repeated.

    Whoever knows the seed can take the noise away again.

    Args:
        seed: Seed of the experiment.
        scope: What the noise is for.
    """
    return lambda round, n: torch.randn(n, generator=generator(seed, *scope, round), dtype=torch.float64)


def from_system(round: int, n: int) -> Tensor:
    """Return standard normal numbers that nobody can repeat.

    Args:
        round: Has no influence.
        n: How many.
    """
    return normal_from_system(n)
