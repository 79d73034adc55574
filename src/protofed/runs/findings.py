"""Findings and interventions of the robust stage in one round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from protofed.untrusted.decoding import Count, Number


@dataclass
class Findings:
    """Changes to one round's uploads, and uploads that were left out."""

    #: Number of shortened vectors and smallest factor, by client
    clipped: dict[str, tuple[int, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  #: Reasons by client
    #: Count fields, and sums over samples, that exceeded the client's weight, by client
    capped: dict[str, list[str]] = field(default_factory=dict)
    #: Classes that a single client reported: nothing can be compared there
    alone: list[int] = field(default_factory=list)
    #: Clients with a vector many times as long as the median that reached the method
    out_of_proportion: list[str] = field(default_factory=list)
    kept: str = ""  #: Why the server kept its old state, if it did

    def shortened(self, client: str, vectors: int, factor: float) -> None:
        """Add vectors of a client that were shortened."""
        count, smallest = self.clipped.get(client, (0, 1.0))
        self.clipped[client] = count + vectors, min(smallest, factor)

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as plain values; empty where nothing happened."""
        clipped = [{"client": c, "vectors": n, "factor": f} for c, (n, f) in self.clipped.items()]
        left_out = [{"client": c, "reason": reason} for c, reason in self.left_out.items()]
        capped = [{"client": c, "fields": names} for c, names in self.capped.items()]
        parts = vars(self) | {"clipped": clipped, "left_out": left_out, "capped": capped}
        return {name: value for name, value in parts.items() if value}


class _Clipped(Struct):
    client: str
    vectors: Count
    factor: Number


class LeftOut(Struct):
    """A client that did not take part, and why."""

    client: str
    reason: str


class _Capped(Struct):
    client: str
    fields: list[str]


class WrittenFindings(Struct, frozen=True):
    """Findings as :meth:`Findings.to_dict` writes them."""

    clipped: list[_Clipped] = []
    left_out: list[LeftOut] = []
    capped: list[_Capped] = []
    alone: list[Count] = []
    out_of_proportion: list[str] = []
    kept: str = ""

    def read(self) -> Findings:
        """Return the findings."""
        return Findings(
            {entry.client: (entry.vectors, entry.factor) for entry in self.clipped},
            {entry.client: entry.reason for entry in self.left_out},
            {entry.client: entry.fields for entry in self.capped},
            self.alone,
            self.out_of_proportion,
            self.kept,
        )
