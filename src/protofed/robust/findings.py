"""What the robust stage noticed and did in a round, for its record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Findings:
    """What was changed or left out of one round's uploads.

    Attributes:
        clipped: By client: how many vectors were shortened, and the smallest factor.
        left_out: By client: why its upload was not used.
        capped: By client: count fields that exceeded what it had described.
        alone: Classes that a single client reported: nothing can be compared there.
        out_of_proportion: Clients with a vector many times as long as the median that reached the method.
    """

    clipped: dict[str, tuple[int, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    capped: dict[str, list[str]] = field(default_factory=dict)
    alone: list[int] = field(default_factory=list)
    out_of_proportion: list[str] = field(default_factory=list)

    def shortened(self, client: str, vectors: int, factor: float) -> None:
        """Add vectors of a client that were shortened, the strongest by ``factor``."""
        count, smallest = self.clipped.get(client, (0, 1.0))
        self.clipped[client] = count + vectors, min(smallest, factor)

    def to_dict(self) -> dict[str, Any]:
        """Return what there is to say as plain values; empty where nothing happened."""
        clipped = [{"client": c, "vectors": n, "factor": f} for c, (n, f) in self.clipped.items()]
        left_out = [{"client": c, "reason": reason} for c, reason in self.left_out.items()]
        capped = [{"client": c, "fields": names} for c, names in self.capped.items()]
        found = {
            "clipped": clipped,
            "left_out": left_out,
            "capped": capped,
            "alone": self.alone,
            "out_of_proportion": self.out_of_proportion,
        }
        return {name: value for name, value in found.items() if value}
