"""Options of secure aggregation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from protofed.options import Options, remote


@dataclass(frozen=True)
class SecureOptions(Options):
    """Secure aggregation: the server learns the sum of the uploads and no single one (Bonawitz et al. 2017)."""

    aggregation: bool = remote(
        False, "mask uploads so that only their sum can be read; for methods whose server needs sums only"
    )
    threshold: float = remote(
        0.66,
        "share of a round's clients without which its sum cannot be read; more than half, so that no two groups of "
        "clients can be asked for both halves of a secret",
        above=0.5,
        most=1,
    )
    fraction_bits: int = remote(
        24, "binary digits after the point of the 64-bit numbers that are added: a step of 2^-24", least=8, most=40
    )

    def least(self, clients: int) -> int:
        """Return the number of clients without which a round of ``clients`` fails: always more than half, and 2."""
        return max(2, clients // 2 + 1, math.ceil(self.threshold * clients - 1e-9))
