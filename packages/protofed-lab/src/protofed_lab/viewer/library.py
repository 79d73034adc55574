"""All runs below one folder, read anew when their files change."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from protofed.errors import CheckpointError, ConfigError
from protofed.runs.border import Border, Signature
from protofed.runs.files import read_comparison
from protofed.runs.labels import tell_apart
from protofed.runs.loading import DEEPEST, load_run
from protofed.runs.metrics import METRICS
from protofed.runs.run import Run

READING_SHARE = 0.1  #: Share of the time that reading may take: large trees and long runs are looked at less often
READING_S = 0.4  #: Seconds after which pages show the runs that have been read, while the others are still to come
BEGINNING_S = 60.0  #: Seconds that a directory without all of its files is given before they count as missing
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


@dataclass(frozen=True)
class SeenRun:
    """The state of a run at one moment."""

    key: str  #: Its folder below the folder shown, with ``/`` between names
    state: State
    run: Run | None = None  #: None before it has begun, and where it cannot be read
    reason: str = ""  #: Of damage or waiting


class Follower:
    """Reads one run directory whenever a file of it has changed."""

    FILES = ("config.toml", "federation.json", "rounds.jsonl", "summary.json", METRICS)

    def __init__(self, key: str, directory: Path, border: Border) -> None:
        self.directory, self.border = directory, border
        self.seen = SeenRun(key, State.STARTING)
        self._signed: list[Signature | str | None] = []
        self._written, self._reason = 0.0, ""

    def poll(self, running: float | None = None) -> bool:
        """Read what changed; return whether ``seen`` is another than before. Raises nothing.

        Args:
            running: A clock that cannot be set.
        """
        running = time.monotonic() if running is None else running
        run, signed = self.seen.run, [*map(self._sign, self.FILES)]
        if changed := signed != self._signed:
            # Signed before anything is read, so that a file that changes meanwhile is read again.
            self._signed, run, self._reason = signed, None, ""
            newest = max((found[2] for found in signed if isinstance(found, tuple)), default=0)
            self._written = running - max(0.0, time.time() - newest / 1e9)
            try:
                run = load_run(self.directory, self.border)
            except CheckpointError as error:
                self._reason = str(error)
            except Exception as error:  # whatever strange files may cause
                self._reason = f"{self.directory}: not the files of a run ({type(error).__name__}: {error})"
        state = self._state(run, running - self._written)
        if not changed and state is self.seen.state:
            return False
        self.seen = SeenRun(self.seen.key, state, run, self._reason if state is State.DAMAGED else "")
        return True

    def _sign(self, name: str) -> Signature | str | None:
        """Return a value that changes when a file does."""
        try:
            return self.border.signature(self.directory / name)
        except CheckpointError as error:
            return str(error)

    def _state(self, run: Run | None, age: float) -> State:
        if run is None:
            # The files of a run appear one after the other.
            missing = not all((self.directory / n).exists() for n in ("federation.json", "rounds.jsonl"))
            beginning = missing and (self.directory / "config.toml").exists() and age < BEGINNING_S
            return State.STARTING if beginning else State.DAMAGED
        if run.finished:
            return State.FINISHED
        last = [r.seconds["total"] for r in run.rounds[-5:]]
        if age > max(QUIET_S, 10 * max(last, default=0.0)):
            return State.QUIET
        return State.RUNNING if run.rounds else State.STARTING


class Library:
    """The runs of a folder, shared by all pages; safe to be used from several threads.

    Attributes:
        runs: By key, in the order in which they are found.
        version: Grows whenever a run changes, appears or goes.
    """

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            fault = "is a file" if root.exists() else "no such folder"
            raise ConfigError(f"{root}: {fault}: name a run, a comparison, or a folder of them")
        self.root, self.border = root, Border(root)
        self.runs: dict[str, SeenRun] = {}
        self.version = 0
        self._followers: dict[str, Follower] = {}
        self._again_at = 0.0
        self._lock = threading.Lock()

    def refresh(self) -> None:
        """Bring everything up to date, unless that was done a moment ago: pages may ask as often as they like."""
        with self._lock:
            started = time.monotonic()
            if started >= self._again_at:
                complete = self._read(started + READING_S)
                took = time.monotonic() - started
                self._again_at = started + max(0.3, took / READING_SHARE) if complete else 0.0

    def poll(self) -> bool:
        """Bring everything up to date, however long it takes; return whether anything changed."""
        with self._lock:
            before = self.version
            self._read(float("inf"))
            return self.version != before

    def _read(self, deadline: float) -> bool:
        """Read what changed; return whether no run is left to be read for the first time."""
        changed, complete, seen = False, True, dict[str, SeenRun]()
        for key, place in places(self.root, self.border):
            if isinstance(place, SeenRun):
                seen[key] = place
                changed |= self.runs.get(key) != place
                continue
            if key not in self._followers:
                if time.monotonic() > deadline:
                    complete = False
                    continue
                self._followers[key] = Follower(key, place, self.border)
            changed |= self._followers[key].poll()
            seen[key] = self._followers[key].seen
        self._followers = {key: follower for key, follower in self._followers.items() if key in seen}
        if changed or list(seen) != list(self.runs):
            self.runs = _label(seen)
            self.version += 1
        return complete


def _label(seen: dict[str, SeenRun]) -> dict[str, SeenRun]:
    """Return runs with labels of which those that are equal differ in nothing but the seed."""
    runs = {key: each.run for key, each in seen.items() if each.run is not None}
    labels = tell_apart([run.label for run in runs.values()], [run.config for run in runs.values()])
    for (key, run), label in zip(runs.items(), labels, strict=True):
        if label != run.label:
            seen[key] = replace(seen[key], run=replace(run, label=label))
    return seen


def places(root: Path, border: Border) -> Iterator[tuple[str, Path | SeenRun]]:
    """Yield the runs at or below ``root`` and inside ``border``, each once: of directories and of comparisons.

    Links are followed as long as they stay inside; the folders of a run are not searched.

    Yields:
        Its key, and its directory, or why it cannot be read.
    """
    keys: set[str] = set()
    for key, place in _places(root, root, border, 0, set()):
        if key not in keys:
            keys.add(key)
            yield key, place


def _places(
    path: Path, root: Path, border: Border, depth: int, visited: set[Path]
) -> Iterator[tuple[str, Path | SeenRun]]:
    def without(place: Path, reason: str, state: State = State.DAMAGED) -> tuple[str, SeenRun]:
        key = _key(place, root)
        return key, SeenRun(key, state, reason=reason)

    try:
        real = path.resolve()
        if real in visited:
            return
        visited.add(real)
        if (path / "config.toml").exists() or (path / "rounds.jsonl").exists():
            yield _key(path, root), path
            return
        below = sorted(
            entry.name for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith(".")
        )
    except OSError as error:
        yield without(path, f"{path}: cannot be read ({error.strerror or error})")
        return
    listed: list[str] = []
    if (path / "comparison.json").is_file():
        try:
            border.signature(path / "comparison.json")
            listed = [run.directory for run in read_comparison(path / "comparison.json").runs]
        except CheckpointError as error:
            yield without(path, str(error))
    for name in dict.fromkeys([*listed, *below]):
        place, started = path / name, False
        if not border.holds(place):
            yield without(place, f"{place}: leads out of {border.root}")
            continue
        if place.is_dir() and depth < DEEPEST:
            for inner in _places(place, root, border, depth + 1, visited):
                started = True
                yield inner
        if name in listed and not started:
            yield without(place, "the comparison has not come to it yet", State.WAITING)


def _key(path: Path, root: Path) -> str:
    """Return a run's folder below ``root`` in letters that can be sent; its own name for ``root`` itself."""
    below = path.relative_to(root).as_posix()
    text = (root.resolve().name or "run") if below == "." else below
    return text.encode("utf-8", "backslashreplace").decode()
