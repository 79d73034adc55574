"""One run directory, followed while it is being written: only what is new is read."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

from protofed.errors import CheckpointError
from protofed.runs.border import Border, Signature
from protofed.runs.files import in_order, is_written, read_record
from protofed.runs.loading import check_run, load_description
from protofed.runs.metrics import METRICS
from protofed.runs.records import RoundRecord
from protofed.runs.run import Run
from protofed.untrusted import limits
from protofed.untrusted.reading import lines, open_ordinary, reason

BEGINNING_S = 60.0
"""A directory without all of its files is given so long before they count as missing."""

QUIET_S = 60.0
"""A run that writes nothing for so long, and for ten rounds' time, is called quiet: it may have been stopped."""


class State(StrEnum):
    """The progress of a run, as its files tell."""

    WAITING = "waiting"
    """Listed by a comparison, and not begun."""
    STARTING = "starting"
    RUNNING = "running"
    QUIET = "quiet"
    FINISHED = "finished"
    DAMAGED = "damaged"


class RoundsFile:
    """``rounds.jsonl`` while it grows, and its records by round so far."""

    def __init__(self, path: Path, border: Border) -> None:
        self.path = path
        self.border = border
        self._forget()

    def _forget(self) -> None:
        self.records: dict[int, RoundRecord] = {}
        self._seen: Signature | None = None
        self._offset = self._lines = 0
        self._end = b""
        self._fault: CheckpointError | None = None

    @property
    def exists(self) -> bool:
        """Return whether there is such a file."""
        return self._seen is not None

    def poll(self) -> bool:
        """Read what was added; return whether ``records`` changed.

        A line without its end is waited for. A file that was replaced, cut, or changed before the place reached is
        read from its beginning: a resumed run writes it anew, without the rounds that it will repeat.

        Raises:
            CheckpointError: If a line is no record of a round.
        """
        seen = self.border.signature(self.path)
        if seen == self._seen:
            if self._fault is not None:
                raise self._fault
            return False
        had = len(self.records)
        if seen is None:
            self._forget()
            return had > 0
        try:
            with open_ordinary(self.path, limits.ROUNDS_BYTES) as file:
                if self._seen is not None and (seen[0] != self._seen[0] or not self._continues(file)):
                    self._forget()
                replaced = had > 0 and not self._offset
                file.seek(self._offset)
                self._seen, self._fault = seen, None
                return self._take(file) or replaced
        except CheckpointError as error:
            self._fault = error
            raise
        except (OSError, ValueError) as error:
            self._fault = CheckpointError(f"{self.path}: line {self._lines + 1} cannot be read ({reason(error)})")
            raise self._fault from None

    def _continues(self, file: Any) -> bool:
        """Return whether the file still holds, up to the place reached, what was read there."""
        file.seek(max(0, self._offset - len(self._end)))
        return bool(file.read(len(self._end)) == self._end)

    def _take(self, file: BinaryIO) -> bool:
        changed = False
        for line in lines(file, limits.LINE_BYTES):
            if is_written(line):
                self._record(line)
                self._reached(line)
                changed = True
        return changed

    def _record(self, line: bytes) -> None:
        if not line.strip():
            return
        record = read_record(line, f"{self.path}: line {self._lines + 1}")
        self.records[record.round] = record
        self._lines += 1

    def _reached(self, read: bytes) -> None:
        self._offset += len(read)
        self._end = (self._end + read)[-64:]

    @property
    def in_order(self) -> list[RoundRecord]:
        """The records, ascending by round."""
        return in_order(self.records, self.path)


@dataclass(frozen=True)
class SeenRun:
    """The state of a run at one moment.

    Attributes:
        key: Its folder below the folder shown, with ``/`` between names.
        run: None before it has begun, and where it cannot be read.
        reason: Of damage or waiting.
        changed: By the system's clock, in seconds.
        version: Grows with every change.
    """

    key: str
    directory: Path
    state: State
    run: Run | None = None
    reason: str = ""
    changed: float = 0.0
    version: int = 0

    @property
    def live(self) -> bool:
        """Return whether more may come."""
        return self.state in (State.WAITING, State.STARTING, State.RUNNING, State.QUIET)


class Follower:
    """Follows one run directory."""

    FILES = ("config.toml", "federation.json", "summary.json", METRICS)

    def __init__(self, key: str, directory: Path, border: Border) -> None:
        self.seen = SeenRun(key, directory, State.STARTING)
        self.border = border
        self.rounds = RoundsFile(directory / "rounds.jsonl", border)
        self._signatures: dict[str, Signature | None] = {}
        self._description: Run | None = None
        self._broken = ""
        self._since = 0.0

    def poll(self, now: float | None = None, running: float | None = None) -> bool:
        """Read what changed; return whether ``seen`` is another than before. Raises nothing.

        Args:
            running: A clock that cannot be set, to count the time since then.
        """
        now = time.time() if now is None else now
        running = time.monotonic() if running is None else running
        before = self.seen
        try:
            changed = self._read()
            run, reason = (self._run() if changed else self.seen.run), ""
            if changed and run is not None:
                check_run(run)
        except CheckpointError as error:
            changed, run, reason = str(error) != self._broken, None, str(error)
        except Exception as error:  # whatever strange files may cause
            reason = f"{self.seen.directory}: not the files of a run ({type(error).__name__}: {error})"
            changed, run = reason != self._broken, None
        self._broken = reason
        at = before.changed
        if changed or not before.version:
            at = self._last_written(now)
            self._since = running - (now - at)
        state = self._state(run, reason, running - self._since)
        if state is State.STARTING:
            reason = ""
        if not changed and (state, reason) == (before.state, before.reason) and before.version:
            return False
        self.seen = SeenRun(before.key, before.directory, state, run, reason, at, before.version + 1)
        return True

    def _read(self) -> bool:
        """Read files that changed since the last time; return whether any did."""
        folder = self.seen.directory
        signatures = {name: self.border.signature(folder / name) for name in self.FILES}
        changed = signatures != self._signatures
        if changed:
            # Before anything is read, so that a file that changes meanwhile is read again.
            self._description, self._signatures = None, {}
            self._description = load_description(folder, self.border)
            self._signatures = signatures
        return self.rounds.poll() or changed or bool(self._broken)

    def _run(self) -> Run | None:
        if not self.rounds.exists:
            raise CheckpointError(f"{self.rounds.path}: missing")
        assert self._description is not None
        return replace(self._description, rounds=self.rounds.in_order)

    def _last_written(self, now: float) -> float:
        """Return when any of the files was last written; not in the future."""
        times = [0.0]
        for name in (*self.FILES, "rounds.jsonl"):
            try:
                times.append(os.stat(self.seen.directory / name).st_mtime)
            except OSError:
                continue
        return min(now, max(times))

    def _state(self, run: Run | None, reason: str, age: float) -> State:
        if reason:
            # The files of a run appear one after the other.
            missing = not all((self.seen.directory / n).exists() for n in ("federation.json", "rounds.jsonl"))
            beginning = missing and (self.seen.directory / "config.toml").exists() and age < BEGINNING_S
            return State.STARTING if beginning else State.DAMAGED
        if run is None:
            return State.STARTING
        if run.finished:
            return State.FINISHED
        last = [r.seconds["total"] for r in run.rounds[-5:]]
        if age > max(QUIET_S, 10 * max(last, default=0.0)):
            return State.QUIET
        return State.RUNNING if run.rounds else State.STARTING
