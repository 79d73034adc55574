"""Gaussian noise: repeatable in a simulation, from the system's randomness in a deployment."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from protofed.compute.normal import draw_rounded_normal
from protofed.compute.seeding import generator
from protofed.errors import PayloadError
from protofed.visits.private import Noise

Vector = NDArray[np.uint64]  #: Whole numbers modulo 2^64; a negative one stands for its complement
BITS = 63  #: Binary digits of a sum, without the sign
Source = Callable[[int], Noise]  #: Returns the noise of a round
FINEST, COARSEST = 2.0**12, 2.0**48
"""Least and greatest standard deviation of a client's share of the noise, in steps of the fixed point: finer noise
would be changed by rounding, and the sum of coarser noise might overflow."""
FORM = "<dqq"  #: Form in which a client's noise rests between the stages of a round


def from_seed(seed: int, *scope: str | int) -> Source:
    """Return a source whose numbers follow from a seed, so that a simulation can be repeated.

    Whoever knows the seed can take the noise away again.
    """
    return lambda round_number: Noise(generator(seed, *scope, round_number), torch.float64)


def from_system(round_number: int) -> Noise:
    """Return noise that nobody can repeat."""
    return Noise(None)


class OwnNoise(NamedTuple):
    """The noise that a client adds to its own vector of whole numbers, so that only a sum has to be known."""

    deviation: float = 0.0  # of the noise that the sum needs, in steps of the fixed point
    colluders: int = 0  # clients whose shares do not count, because they might add none, or tell theirs
    seed: int = -1  # negative for the operating system's random numbers

    def to_bytes(self) -> bytes:
        """Return the noise as bytes of a fixed number."""
        return struct.pack(FORM, *self)

    @classmethod
    def of(cls, content: bytes) -> OwnNoise:
        """Return the noise that :meth:`to_bytes` wrote."""
        return cls(*struct.unpack(FORM, content))

    def share(self, threshold: int) -> float:
        """Return the standard deviation of one client's noise: ``σ/√(t − a)``.

        However many of the clients fall silent, at least ``t`` vectors are in a sum that can be read, and the noise
        of ``t − a`` of them has the variance ``σ²`` together.

        Args:
            threshold: ``t``, the vectors without which a sum cannot be read.
        """
        if not self.deviation:
            return 0.0
        honest = threshold - self.colluders
        if honest < 1:
            raise PayloadError(
                f"threshold: of {threshold} clients, {self.colluders} might collude (privacy.colluders), so that "
                "no noise is sure"
            )
        share = self.deviation / math.sqrt(honest)
        if not FINEST <= share <= COARSEST:
            way = "raise" if share < FINEST else "lower"
            raise PayloadError(
                f"noise: a standard deviation of {share:.3g} steps is not from {FINEST:g} to {COARSEST:g}: {way} "
                "secure.fraction_bits"
            )
        return share

    def draw(self, threshold: int, length: int) -> Vector:
        """Return one client's share of the noise, as whole numbers modulo 2^64.

        The probabilities of a sum of rounded Gaussians are the density of the sum of Gaussians and of uniform
        numbers, at whole numbers, up to a share of ``exp(−2π²·share²)`` (Poisson's summation): nothing, from
        :data:`FINEST` on. Uniform numbers are further noise, so that the sum hides no less than one Gaussian with
        the variance of all.
        """
        share = self.share(threshold)
        if not share:
            return np.zeros(length, dtype=np.uint64)
        if self.seed < 0:
            return draw_rounded_normal(length, share).numpy().view(np.uint64)
        repeatable = torch.Generator().manual_seed(self.seed)
        normal = torch.randn(length, generator=repeatable, dtype=torch.float64)
        return (share * normal).round().to(torch.int64).numpy().view(np.uint64)


NO_NOISE = OwnNoise()
