"""What the user may set of robust rules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from protofed.options import option

Rule = Literal["none", "clip", "median", "trimmed", "geometric_median", "krum", "multi_krum"]
POOLING = ("median", "trimmed", "geometric_median", "krum")
"""Rules that put one vector in the place of those of all clients."""


@dataclass(frozen=True)
class RobustOptions:
    """How the server limits what a few hostile or broken clients can do."""

    rule: Rule = option(
        "clip",
        "applied to validated uploads before the method sees them, per class for prototypes and per tensor for "
        "weights: none; clip: long vectors are shortened; median, trimmed (mean), geometric_median, krum: one "
        "robust vector takes the place of all; multi_krum: the uploads least like the others are left out",
    )
    attackers: float = option(
        0.2, "assumed share of hostile clients, rounded up to a number, for trimmed, krum and multi_krum"
    )
    norm: float = option(2.0, "clip: longest prototype, as a multiple of the median length of all in the round")
    distance: float = option(
        2.0,
        "clip: longest distance of a prototype from the median of its class, as a multiple of the median distance",
    )
    update: float = option(
        6.0, "clip: longest change of a weight tensor since the broadcast, as a multiple of the median change"
    )
    reject: float = option(
        20.0, "an upload with a vector this many times as long as the median is left out whole (0 = never)"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.attackers < 0.5:
            raise ValueError(
                f"attackers must lie in [0, 0.5), not {self.attackers}: no rule survives a hostile half"
            )
        for name in ("norm", "distance", "update"):
            if not getattr(self, name) >= 1:
                raise ValueError(
                    f"{name} must be at least 1, not {getattr(self, name)}: less would shorten half of the vectors"
                )
        if self.reject and not self.reject > 1:
            raise ValueError(f"reject must be 0, or greater than 1, not {self.reject}")
