"""Findings and interventions of the robust stage in one round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from protofed.errors import CheckpointError
from protofed.runs.checks import are_counts, are_tables, are_texts, is_count, is_number


@dataclass
class Findings:
    """Changes to one round's uploads, and uploads that were left out.

    Attributes:
        clipped: By client: how many vectors were shortened, and the smallest factor.
        left_out: By client: why its upload was not used.
        capped: By client: count fields, and sums over samples, that exceeded what it may weigh.
        alone: Classes that a single client reported: nothing can be compared there.
        out_of_proportion: Clients with a vector many times as long as the median that reached the method.
        kept: Why the server kept its old state; ``""`` if it did not.
    """

    clipped: dict[str, tuple[int, float]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    capped: dict[str, list[str]] = field(default_factory=dict)
    alone: list[int] = field(default_factory=list)
    out_of_proportion: list[str] = field(default_factory=list)
    kept: str = ""

    def shortened(self, client: str, vectors: int, factor: float) -> None:
        """Add vectors of a client that were shortened.

        Args:
            factor: The smallest factor that any of them was multiplied by.
        """
        count, smallest = self.clipped.get(client, (0, 1.0))
        self.clipped[client] = count + vectors, min(smallest, factor)

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as plain values; empty where nothing happened."""
        clipped = [{"client": c, "vectors": n, "factor": f} for c, (n, f) in self.clipped.items()]
        left_out = [{"client": c, "reason": reason} for c, reason in self.left_out.items()]
        capped = [{"client": c, "fields": names} for c, names in self.capped.items()]
        parts = {
            "clipped": clipped,
            "left_out": left_out,
            "capped": capped,
            "alone": self.alone,
            "out_of_proportion": self.out_of_proportion,
            "kept": self.kept,
        }
        return {name: value for name, value in parts.items() if value}

    @classmethod
    def from_dict(cls, value: Any, where: str) -> Findings:
        """Return the findings that :meth:`to_dict` wrote.

        Args:
            where: What errors begin with.

        Raises:
            CheckpointError: If ``value`` is something else.
        """
        if value == {}:
            return cls()
        table = value if isinstance(value, dict) else {}
        clipped, left_out, capped, alone, long = (
            table.get(name, []) for name in ("clipped", "left_out", "capped", "alone", "out_of_proportion")
        )
        kept = table.get("kept", "")
        fits = (
            isinstance(value, dict)
            and isinstance(kept, str)
            and are_tables(clipped, ["client"])
            and all(is_count(entry.get("vectors")) and is_number(entry.get("factor")) for entry in clipped)
            and are_tables(left_out, ["client", "reason"])
            and are_tables(capped, ["client"])
            and all(are_texts(entry.get("fields")) for entry in capped)
            and are_counts(alone)
            and are_texts(long)
        )
        if not fits:
            raise CheckpointError(f"{where} should be a table of lists of clients and classes")
        return cls(
            {entry["client"]: (entry["vectors"], entry["factor"]) for entry in clipped},
            {entry["client"]: entry["reason"] for entry in left_out},
            {entry["client"]: entry["fields"] for entry in capped},
            alone,
            long,
            kept,
        )
