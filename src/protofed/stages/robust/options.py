"""Options of the robust stage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from protofed.options import Options, option, remote
from protofed.untrusted import claims
from protofed.untrusted.decoding import SampleCount, decode

Rule = Literal["none", "clip", "median", "trimmed", "geometric_median", "multi_krum"]
POOLING = ("median", "trimmed", "geometric_median")  #: Rules that replace the vectors of all clients by one


@dataclass(frozen=True)
class RobustOptions(Options):
    """The server's limits on a few hostile or broken clients."""

    rule: Rule = remote(
        "none",
        "applied to validated uploads before the method sees them, per class for prototypes and per tensor for "
        "weights: none; clip, which a deployment applies unless it names a rule: long vectors are shortened; "
        "median, trimmed (mean), geometric_median: one robust vector replaces all; multi_krum: the uploads least "
        "like the others are left out",
    )
    attackers: float = remote(
        0.2,
        "assumed share of hostile clients, rounded up to a number, for trimmed and multi_krum; no rule survives "
        "a hostile half",
        least=0,
        below=0.5,
    )
    norm: float = remote(
        2.0, "clip: longest prototype, as a multiple of the median length of all in the round", least=1
    )
    distance: float = remote(
        2.0,
        "clip: longest distance of a prototype from the median of its class, as a multiple of the median distance",
        least=1,
    )
    update: float = remote(
        6.0,
        "clip: longest change of a weight tensor since the broadcast, as a multiple of the median change",
        least=1,
    )
    reject: float = remote(
        20.0, "an upload with a vector this many times as long as the median is left out whole (0 = never)", least=0
    )
    weight: float | None = remote(
        None,
        "most samples that a client is believed to have, as a multiple of the median over all clients (0 = no "
        "limit; none = 4 with clip, 16 with any other rule)",
        least=0,
    )
    admitted: dict[str, Any] = option(
        {}, "most samples that clients of these names are believed to have, in place of weight: {north = 50000}"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.reject <= 1:
            raise ValueError(f"reject must be 0, or greater than 1, not {self.reject}")
        if self.weight is not None and 0 < self.weight < 1:
            raise ValueError(f"weight must be 0, or at least 1, not {self.weight}")
        for name in self.admitted:
            claims.client_name(name)
        decode({"admitted": self.admitted}, _Admitted, error=ValueError)

    @property
    def most(self) -> float:
        """The limit on weights as a multiple of the median; 0 for none."""
        return self.weight if self.weight is not None else 4.0 if self.rule == "clip" else 16.0


class _Admitted(TypedDict):
    admitted: dict[str, SampleCount]
