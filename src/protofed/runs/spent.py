"""The cost of differential privacy, in the records of rounds and in the summary."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from protofed.untrusted.decoding import Count, Number, check_with


def _finite_or_none(value: Any) -> float:
    if value is None:
        return math.inf
    if type(value) not in (int, float) or not value >= 0:
        raise ValueError("expected a number of at least 0, or none")
    return float(value)


if TYPE_CHECKING:
    Epsilon = float
else:
    Epsilon = check_with(_finite_or_none)


@dataclass
class Spent:
    """Noisy publications so far, and the ε(δ) that follows from them.

    Attributes:
        mode: Hidden presence, of a ``client`` or ``sample``.
        adjacency: Of neighbouring data, which decides what ε means: in one of them, a record adds zero to every sum
            (:mod:`protofed.stages.privacy.accounting`).
        epsilon: Of all rounds so far, the largest of any client; infinite without noise (None in files).
        clip: Largest norm of a contribution.
        rate: Largest probability with which a contribution was drawn; 1 without amplification.
        releases: Noisy sums of contributions of clients, or of gradients of samples.
        clipped: Contributions of the round that were shortened; for reading, not private. With secure aggregation
            nobody learns it, and it is 0.
        means: Further noisy sums of all samples: of class means, and once of numbers of samples.
        means_noise: Their noise multiplier.
    """

    mode: Literal["client", "sample"]
    epsilon: Epsilon
    delta: Number
    noise: Number
    clip: Number
    rate: Number
    releases: Count
    clipped: Count = 0
    means: Count = 0
    means_noise: Number = 0.0
    accountant: Literal["pld", "rdp"] = "rdp"
    adjacency: Literal["zero-out"] = "zero-out"

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain values for JSON."""
        return {**vars(self), "epsilon": self.epsilon if math.isfinite(self.epsilon) else None}
