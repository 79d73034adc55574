"""Runs read back from disk: one directory, a comparison, or a folder of either."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from protofed.errors import CheckpointError
from protofed.runs.border import Border
from protofed.runs.files import (
    read_comparison,
    read_config,
    read_federation,
    read_metrics,
    read_rounds,
    read_summary,
)
from protofed.runs.labels import tell_apart
from protofed.runs.metrics import METRICS
from protofed.runs.run import Run
from protofed.untrusted.reading import reason

DEEPEST = 8  #: Folders further down are not searched


def load_run(path: Path, border: Border | None = None) -> Run:
    """Read one run directory; a last line of ``rounds.jsonl`` that is still being written is left out.

    Args:
        border: Links must not leave it; by default the directory itself.

    Raises:
        CheckpointError: If a file is missing or damaged, or leads elsewhere.
    """
    border = border or Border(path)
    description = load_description(path, border)
    border.signature(path / "rounds.jsonl")
    run = replace(description, rounds=read_rounds(path / "rounds.jsonl"))
    check_run(run)
    return run


def load_description(path: Path, border: Border | None = None) -> Run:
    """Return one run without reading its rounds, which are left empty."""
    border = border or Border(path)
    for name in ("config.toml", "federation.json", "summary.json", METRICS):
        border.signature(path / name)
    config = read_config(path / "config.toml")
    federation = read_federation(path / "federation.json")
    summary = read_summary(path / "summary.json")
    metrics = read_metrics(path / METRICS, federation) if summary else None
    label = (summary.label if summary else "") or _short(config["method"]["name"])
    return Run(path, config, federation, [], summary, label, measured=metrics)


def check_run(run: Run) -> None:
    """Compute what is asked of a run, so that whatever is wrong with its files comes to light here."""
    where = run.directory / "rounds.jsonl"
    try:
        _ = run.seed, run.planned_rounds, run.outcome, run.rules, run.sent()
        held_out = run.last_validation.clients.values() if run.last_validation else ()
        for scores in (*map(run.client_accuracies, run.rules), *held_out):
            if len(scores) != len(run.clients):
                last = run.last_evaluation
                raise CheckpointError(
                    f"{where}: round {last} has {len(scores)} accuracies for {len(run.clients)} clients"
                )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: not the rounds of one run ({type(error).__name__}: {error})") from None


def load_runs(paths: Sequence[Path], left_out: list[CheckpointError] | None = None) -> list[Run]:
    """Read all runs at or below ``paths``: run directories, comparisons, or folders with either inside.

    Runs of a comparison that have not begun are left out, and a directory reached twice counts once, unless a
    comparison lists it under several methods or values. Links are followed as long as they stay below the path that
    was named.

    Args:
        left_out: Takes the errors of damaged runs inside a folder, whose others are then read; None raises them.
    """
    runs: dict[tuple[Path, str, tuple[str, ...]], Run] = {}
    for path in map(Path, paths):
        faults: list[CheckpointError] = []
        loaded = list(_runs_at(path, _Search(Border(path), faults if left_out is not None else None)))
        if not loaded and faults:
            raise faults[0]
        if not loaded:
            raise CheckpointError(f"{path}: no run here: expected config.toml and rounds.jsonl, or comparison.json")
        known = {directory for directory, _, _ in runs}
        for run in loaded:
            place = run.directory.resolve()
            if run.listed or place not in known:
                runs.pop((place, "", ()), None)
                runs[place, run.listed, run.values] = run
        if left_out is not None:
            left_out += faults
    labels = tell_apart([run.label for run in runs.values()], [run.config for run in runs.values()])
    return [replace(run, label=label) for run, label in zip(runs.values(), labels, strict=True)]


@dataclass
class _Search:
    """A search for runs below one folder."""

    border: Border  #: Nothing beyond it is read
    faults: list[CheckpointError] | None  #: Errors of damaged runs; None raises them
    visited: set[Path] = field(default_factory=set)  #: Real paths

    def load(self, path: Path) -> Run | None:
        """Return a run; None if it is damaged, and that is noted."""
        try:
            return load_run(path, self.border)
        except CheckpointError as error:
            self.note(error)
            return None

    def note(self, error: CheckpointError) -> None:
        """Note a fault, or raise it."""
        if self.faults is None:
            raise error
        self.faults.append(error)


def _runs_at(path: Path, search: _Search, depth: int = 0) -> Iterator[Run]:
    real = path.resolve()
    if real in search.visited or depth > DEEPEST:
        return
    search.visited.add(real)
    if not search.border.holds(path):
        search.note(CheckpointError(f"{path}: leads out of {search.border.root}"))
    elif (path / "comparison.json").is_file():
        yield from _comparison(path, search)
    elif (path / "config.toml").exists() or (path / "rounds.jsonl").exists():
        run = search.load(path)
        if run is not None:
            yield run
    elif path.is_dir():
        try:
            below = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
        except OSError as error:
            search.note(CheckpointError(f"{path}: cannot be read ({reason(error)})"))
            return
        for folder in below:
            yield from _runs_at(folder, search, depth + 1)


def _comparison(path: Path, search: _Search) -> Iterator[Run]:
    runs = []
    try:
        search.border.signature(path / "comparison.json")
        listed = read_comparison(path / "comparison.json")
    except CheckpointError as error:
        search.note(error)
        return
    for entry in listed.runs:
        folder = path / entry.directory
        run = search.load(folder) if (folder / "rounds.jsonl").exists() else None
        if run is not None:
            runs.append((entry.method, entry.values, run))
    # An unfinished run does not know its label yet: it takes that of a finished run of the same method. A variant
    # has the name that the recipe gives it.
    labels = {method: run.label for method, _, run in runs if run.finished and run.method == method}
    for method, values, run in runs:
        yield replace(
            run, label=", ".join((labels.get(method, _short(method)), *values)), values=values, listed=method
        )


def axes_of(path: Path) -> Mapping[str, Sequence[str]]:
    """Return the names of the values along each axis of a comparison; empty where it has none."""
    where = Path(path) / "comparison.json"
    return read_comparison(where).axes if where.exists() else {}


def _short(method: str) -> str:
    """Return the class of a user's own method ``package.module:Class``, and any other name as it is."""
    return method.rpartition(":")[2]
