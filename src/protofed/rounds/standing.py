"""Exclusion of clients whose uploads were refused too often, and their return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TypedDict

from protofed.runs.records import RoundRecord
from protofed.untrusted import claims
from protofed.untrusted.decoding import Round


class Refusals(TypedDict):
    """What is stored of a :class:`Standing`: numbers of refusals and the round of the last one, by client."""

    damaged: dict[str, Round]
    diverged: dict[str, Round]
    last: dict[str, Round]
    misled: list[str]


class Standing:
    """Record of the clients' refused uploads.

    A damaged upload always counts against its sender. Numbers that are not finite or too large come from a diverged
    model: they do not count if a poisoned broadcast may have caused them, a usable upload cancels them, and a
    client excluded for them is asked again after as many rounds as it had refusals.
    """

    def __init__(self) -> None:
        self.damaged: Counter[str] = Counter()
        self.diverged: Counter[str] = Counter()
        self._last: dict[str, int] = {}
        self._misled: set[str] = set()

    def note(self, record: RoundRecord, names: Sequence[str]) -> None:
        """Take a round's record into account."""
        refused = {refusal.client: refusal.diverged for refusal in record.refused}
        missing = {absence.client for absence in record.missing if absence.phase == "training"}
        together = 2 * sum(refused.values()) > len(record.participants)
        for client in record.participants:
            if client not in refused and client not in missing:
                self._misled.discard(client)
                self.diverged[client] = 0
        for client, diverged in refused.items():
            if not diverged:
                self.damaged[client] += 1
            elif not together and client not in self._misled:
                self.diverged[client] += 1
                self._last[client] = record.round
        if together or record.robust.out_of_proportion:
            self._misled.update(names)

    def able(self, names: Sequence[str], round_number: int, limit: int) -> list[str]:
        """Return the clients that may be asked: those with fewer than ``limit`` refusals (0: no limit)."""
        return [name for name in names if not limit or not self._is_left_out(name, round_number, limit)]

    def _is_left_out(self, name: str, round_number: int, limit: int) -> bool:
        times = self.diverged[name]
        resting = times >= limit and round_number <= self._last[name] + times
        return resting or self.damaged[name] >= limit

    def to_dict(self) -> Refusals:
        """Return the record as plain values, for a checkpoint."""
        return {
            "damaged": +self.damaged,
            "diverged": +self.diverged,
            "last": dict(self._last),
            "misled": sorted(self._misled),
        }

    @classmethod
    def of(cls, value: Refusals, names: Collection[str]) -> Standing:
        """Undo :meth:`to_dict`."""
        if undated := value["diverged"].keys() - value["last"].keys():
            raise ValueError(f"refusals: last: {min(undated)} is missing")
        strangers = {*value["damaged"], *value["diverged"], *value["last"], *value["misled"]} - set(names)
        if strangers:
            raise ValueError(f"refusals: names an unknown client ({claims.clean(min(strangers), 80)})")
        standing = cls()
        standing.damaged, standing.diverged = Counter(value["damaged"]), Counter(value["diverged"])
        standing._last, standing._misled = value["last"], set(value["misled"])
        return standing
