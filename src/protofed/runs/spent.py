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
    """Noisy publications so far, and the ε(δ) that follows from them."""

    mode: Literal["client", "sample"]  #: Hidden presence, of a ``client`` or ``sample``
    epsilon: Epsilon  #: Of all rounds so far, the largest of any client; infinite without noise (None in files)
    delta: Number
    noise: Number
    clip: Number  #: Largest norm of a contribution
    rate: Number  #: Largest probability with which a contribution was drawn; 1 without amplification
    releases: Count  #: Noisy sums of contributions of clients, or of gradients of samples
    #: Contributions of the round that were shortened; for reading, not private. With secure aggregation nobody
    #: learns it, and it is 0
    clipped: Count = 0
    means: Count = 0  #: Further noisy sums of all samples: of class means, and once of numbers of samples
    means_noise: Number = 0.0  #: Their noise multiplier
    accountant: Literal["pld", "rdp"] = "rdp"
    #: Of neighbouring data, which decides what ε means: in one of them, a record adds zero to every sum
    #: (:mod:`protofed.stages.privacy.accounting`)
    adjacency: Literal["zero-out"] = "zero-out"

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain values for JSON."""
        return {**vars(self), "epsilon": self.epsilon if math.isfinite(self.epsilon) else None}
