"""The cost of differential privacy, in the records of rounds and in the summary."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from protofed.errors import CheckpointError
from protofed.runs.checks import is_count, is_number


@dataclass
class Spent:
    """What has been published so far, and the ε(δ) that follows from it.

    Attributes:
        mode: ``client`` or ``sample``: whose presence is hidden.
        epsilon: ε of all rounds so far, the largest of any client; infinite without noise (None in files).
        delta: δ.
        noise: Noise multiplier.
        clip: Largest norm of a contribution.
        rate: Largest probability with which a contribution was drawn; 1 without amplification.
        releases: Number of noisy sums: of contributions of clients, or of gradients of samples.
        clipped: Contributions of the round that were shortened; for reading, not private. With secure aggregation
            nobody learns it, and it is 0.
        means: Number of further noisy sums of all samples: of class means, and once of numbers of samples.
        means_noise: Noise multiplier of those.
        accountant: Accountant of ε: ``pld`` or ``rdp``.
    """

    mode: str
    epsilon: float
    delta: float
    noise: float
    clip: float
    rate: float
    releases: int
    clipped: int = 0
    means: int = 0
    means_noise: float = 0.0
    accountant: str = "rdp"

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain values for JSON."""
        return {**vars(self), "epsilon": self.epsilon if math.isfinite(self.epsilon) else None}

    @classmethod
    def from_dict(cls, value: Any, where: str) -> Spent:
        """Return the record that :meth:`to_dict` wrote.

        Args:
            where: What errors begin with.

        Raises:
            CheckpointError: If ``value`` is something else.
        """
        table = {"accountant": "rdp", **value} if isinstance(value, dict) else {}  # absent until 0.2.0
        if table.get("epsilon", 0) is None:
            table["epsilon"] = math.inf
        numbers = [table.get(name) for name in ("delta", "noise", "clip", "rate", "means_noise")]
        right = (
            table.keys() == {f.name for f in fields(cls)}
            and table["mode"] in ("client", "sample")
            and table["accountant"] in ("pld", "rdp")
            and all(map(is_number, numbers))
            and (is_number(table["epsilon"]) or table["epsilon"] == math.inf)
            and all(is_count(table[name]) for name in ("releases", "clipped", "means"))
        )
        if not right:
            raise CheckpointError(f"{where} should have {', '.join(f.name for f in fields(cls))}")
        return cls(**table)
