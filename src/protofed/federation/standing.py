"""Whose uploads were refused so often that they are not asked any more, and who may come back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any


class Standing:
    """The clients' record of refusals; it follows from the rounds' records alone, so a resumed run has the same.

    A damaged upload always counts against its sender. Numbers that are not finite or too large are what a diverged
    model sends: they do not count if a poisoned broadcast may be the cause, a usable upload makes up for them, and
    a client that is left out for them is asked again after as many rounds as it was refused.

    Args:
        limit: Refusals after which a client is left out; 0 for never.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.damaged: Counter[str] = Counter()
        self.diverged: Counter[str] = Counter()
        self._last: dict[str, int] = {}
        self._misled: set[str] = set()

    def note(self, record: Mapping[str, Any], names: Sequence[str]) -> None:
        """Take a round's record (as in ``rounds.jsonl``) into account; ``names`` are all clients."""
        refused = {entry["client"]: entry.get("diverged", False) for entry in record["refused"]}
        missing = {entry["client"] for entry in record["missing"] if entry["phase"] == "training"}
        together = 2 * sum(refused.values()) > len(record["participants"])
        for client in record["participants"]:
            if client not in refused and client not in missing:
                self._misled.discard(client)
                self.diverged[client] = 0
        for client, diverged in refused.items():
            if not diverged:
                self.damaged[client] += 1
            elif not together and client not in self._misled:
                self.diverged[client] += 1
                self._last[client] = record["round"]
        if together or record.get("robust", {}).get("out_of_proportion"):
            self._misled.update(names)

    def able(self, names: Sequence[str], round: int) -> list[str]:
        """Return the clients among ``names`` that are asked in ``round``."""
        return [name for name in names if not self.limit or not self._left_out(name, round)]

    def _left_out(self, name: str, round: int) -> bool:
        times = self.diverged[name]
        resting = times >= self.limit and round <= self._last[name] + times
        return resting or self.damaged[name] >= self.limit
