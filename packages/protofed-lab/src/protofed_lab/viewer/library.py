"""All runs below one folder: found, followed, and named."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from protofed.errors import CheckpointError, ConfigError
from protofed.runs.border import Border
from protofed.runs.files import read_comparison
from protofed.runs.labels import tell_apart
from protofed.runs.loading import DEEPEST
from protofed_lab.viewer.following import Follower, SeenRun, State

LOOKING_SHARE = 0.1
"""Looking for new runs may take this share of the time: large trees are searched less often."""

READING_S = 0.4
"""A page waits so long for runs that are read for the first time; it shows the others as they come."""


@dataclass(frozen=True)
class RunPlace:
    """The present or future place of a run.

    Attributes:
        key: Its folder below the folder shown, with ``/`` between names.
        reason: Why it cannot be followed, or is not there yet; ``""`` if it can be.
        damaged: ``reason`` is a fault.
    """

    key: str
    directory: Path
    reason: str = ""
    damaged: bool = False


class Library:
    """The runs of a folder, shared by all pages; safe to be used from several threads.

    Attributes:
        version: Grows whenever a run changes, appears or goes.
    """

    def __init__(self, root: Path) -> None:
        """Begin to follow a folder."""
        if not root.is_dir():
            fault = "is a file" if root.exists() else "no such folder"
            raise ConfigError(f"{root}: {fault}: name a run, a comparison, or a folder of them")
        self.root = root
        self.border = Border(root)
        self.version = 0
        self._followers: dict[str, Follower] = {}
        self._runs: dict[str, SeenRun] = {}
        self._labels: dict[str, str] = {}
        self._named: object = None
        self._look_at = self._again_at = 0.0
        self._places: list[RunPlace] = []
        self._complete = True
        self._lock = threading.Lock()

    @property
    def runs(self) -> dict[str, SeenRun]:
        """Key → what is known of each run, in the order in which they are found."""
        return self._runs

    def poll(self, *, look: bool = False, first: Collection[str] = (), most_s: float = math.inf) -> bool:
        """Bring everything up to date; return whether anything changed.

        Args:
            look: Search for new runs, even if that was done a moment ago.
            first: Keys of runs to read first.
            most_s: Seconds after which only runs of ``first`` are read for the first time; the next call goes on.
        """
        with self._lock:
            started = time.monotonic()
            if look or started >= self._look_at:
                self._places = list(places(self.root, self.border))
                took = time.monotonic() - started
                self._look_at = started + max(1.0, took / LOOKING_SHARE)
            return self._follow(first, started + most_s)

    def refresh(self) -> None:
        """Bring everything up to date, unless that was done a moment ago: pages may ask as often as they like."""
        if time.monotonic() >= self._again_at:
            started = time.monotonic()
            self.poll(most_s=READING_S)
            took = time.monotonic() - started
            self._again_at = started + max(0.3, took / LOOKING_SHARE) if self._complete else 0.0

    def _follow(self, first: Collection[str], deadline: float) -> bool:
        found: dict[str, SeenRun] = {}
        self._complete = True
        for place in sorted(self._places, key=lambda place: place.key not in first):
            if place.reason:
                state = State.DAMAGED if place.damaged else State.WAITING
                before = self._runs.get(place.key)
                same = before is not None and (before.state, before.reason) == (state, place.reason)
                version = before.version + 1 if before is not None else 1
                new = SeenRun(place.key, place.directory, state, None, place.reason, 0.0, version)
                found[place.key] = before if same and before is not None else new
                continue
            follower = self._followers.get(place.key)
            if follower is None:
                if time.monotonic() > deadline and place.key not in first:
                    self._complete = False
                    continue
                follower = self._followers[place.key] = Follower(place.key, place.directory, self.border)
            follower.poll()
            found[place.key] = follower.seen
        followed = {place.key: found[place.key] for place in self._places if place.key in found}
        for key in self._followers.keys() - followed.keys():
            del self._followers[key]
        self._name(followed)
        named = {key: self._label(seen) for key, seen in followed.items()}
        if list(named) == list(self._runs) and all(named[k] is self._runs[k] for k in named):
            return False
        self._runs = named
        self.version += 1
        return True

    def _name(self, known: dict[str, SeenRun]) -> None:
        """Decide what runs are called: those of one label differ in nothing but their seed."""
        runs = {key: seen.run for key, seen in known.items() if seen.run is not None}
        # A configuration that was read again is another object.
        described = [(key, id(run.config), run.label) for key, run in runs.items()]
        if described != self._named:
            labels = tell_apart([r.label for r in runs.values()], [r.config for r in runs.values()])
            self._labels = dict(zip(runs, labels, strict=True))
            self._named = described

    def _label(self, seen: SeenRun) -> SeenRun:
        before = self._runs.get(seen.key)
        if seen.run is None:
            return before if before is not None and before == seen else seen
        label = self._labels[seen.key]
        if (
            before is not None
            and before.run is not None
            and (before.version, before.run.label) == (seen.version, label)
            and before.run.config is seen.run.config
        ):
            return before
        return replace(seen, run=replace(seen.run, label=label))


def places(root: Path, border: Border) -> Iterator[RunPlace]:
    """Yield the runs at or below ``root`` and inside ``border``, each once: of directories and of comparisons.

    Links are followed as long as they stay inside; the folders of a run are not searched.
    """
    visited: set[Path] = set()
    keys: set[str] = set()
    for place in _places(root, root, border, 0, visited):
        if place.key not in keys:
            keys.add(place.key)
            yield place


def _places(path: Path, root: Path, border: Border, depth: int, visited: set[Path]) -> Iterator[RunPlace]:
    key = _key(path, root)
    try:
        real = path.resolve()
        if real in visited:
            return
        visited.add(real)
        if (path / "config.toml").exists() or (path / "rounds.jsonl").exists():
            yield RunPlace(key, path)
            return
        below = sorted(
            entry.name for entry in os.scandir(path) if entry.is_dir() and not entry.name.startswith(".")
        )
    except OSError as error:
        yield RunPlace(key, path, f"{path}: cannot be read ({error.strerror or error})", damaged=True)
        return
    listed: list[str] = []
    if (path / "comparison.json").is_file():
        try:
            border.signature(path / "comparison.json")
            listed = [run.directory for run in read_comparison(path / "comparison.json").runs]
        except CheckpointError as error:
            yield RunPlace(key, path, str(error), damaged=True)
    for name in dict.fromkeys([*listed, *below]):
        place = path / name
        if not border.holds(place):
            yield RunPlace(_key(place, root), place, f"{place}: leads out of {border.root}", damaged=True)
        elif place.is_dir() and depth < DEEPEST:
            started = False
            for inner in _places(place, root, border, depth + 1, visited):
                started = True
                yield inner
            if name in listed and not started:
                yield RunPlace(_key(place, root), place, "the comparison has not come to it yet")
        elif name in listed:
            yield RunPlace(_key(place, root), place, "the comparison has not come to it yet")


def _key(path: Path, root: Path) -> str:
    """Return a run's folder below ``root`` in letters that can be sent; its own name for ``root`` itself."""
    below = path.relative_to(root).as_posix()
    text = (root.resolve().name or "run") if below == "." else below
    return text.encode("utf-8", "backslashreplace").decode()
