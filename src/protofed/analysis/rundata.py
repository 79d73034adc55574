"""Runs read back from disk: one directory, a comparison, or a folder of either."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofed.analysis._files import read_comparison, read_config, read_federation, read_rounds, read_summary
from protofed.analysis._labels import tell_apart
from protofed.analysis.border import Border
from protofed.analysis.summary import summarise
from protofed.errors import CheckpointError
from protofed.reading import reason

if TYPE_CHECKING:
    from torch import Tensor

RULE_ORDER = ("head", "global_model", "local", "global", "global_own", "etf")
EXCHANGES = ("nothing", "prototypes", "logits", "part of the weights", "all weights")
"""What may cross the network, the least first."""

DEEPEST = 8
"""Folders further down are not searched."""


@dataclass(frozen=True)
class RunData:
    """One run, finished or not.

    Attributes:
        directory: Where it lies.
        config: The resolved configuration.
        federation: Class names, and every client's name, architecture, size and sample counts.
        rounds: One record per round, ascending.
        summary: Content of ``summary.json``; None until the run has finished.
        label: What the run's method is called in figures and tables; runs of one label differ in their seed.
        values: Names of its values along the axes of its comparison.
    """

    directory: Path
    config: dict[str, Any]
    federation: dict[str, Any]
    rounds: list[dict[str, Any]]
    summary: dict[str, Any] | None
    label: str
    values: tuple[str, ...] = ()

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.config.get("method", {}).get("name", "unknown"))

    @property
    def recipe(self) -> str:
        """Name of the recipe, or ``""``."""
        return str(self.config.get("recipe", ""))

    @property
    def seed(self) -> int:
        """The experiment's seed."""
        return int(self.config.get("seed", 0))

    @property
    def finished(self) -> bool:
        """Whether all rounds were run."""
        return self.summary is not None

    @property
    def last_round(self) -> int:
        """The last round on record; 0 before the first has ended."""
        return int(self.rounds[-1]["round"]) if self.rounds else 0

    @property
    def planned_rounds(self) -> int:
        """How many rounds were asked for."""
        return int(self.config.get("rounds", self.last_round))

    @property
    def exchanges(self) -> str:
        """What the method lets cross the network, one of :data:`EXCHANGES`; ``""`` if that is not known."""
        from protofed.methods import methods

        known = methods().get(self.method).exchanges if self.method in methods() else ""
        return str(self.federation.get("exchanges", known))

    @property
    def notes(self) -> list[str]:
        """What the method has to say of its configuration."""
        return [str(note) for note in self.federation.get("notes", [])]

    @property
    def class_names(self) -> list[str]:
        """Names of the ``K`` classes."""
        return [str(name) for name in self.federation["class_names"]]

    @property
    def clients(self) -> list[dict[str, Any]]:
        """The clients as described in ``federation.json``."""
        return list(self.federation["clients"])

    @cached_property
    def evaluated(self) -> list[dict[str, Any]]:
        """The records of rounds with a test accuracy."""
        return [r for r in self.rounds if r.get("accuracy")]

    @cached_property
    def rules(self) -> tuple[str, ...]:
        """Inference rules that were scored, in the method's order."""
        return tuple(dict.fromkeys(rule for r in self.evaluated for rule in r["accuracy"]))

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What :func:`~protofed.analysis.summary.summarise` says of the rounds so far."""
        return summarise(self.rounds)

    def accuracy(self, rule: str) -> dict[int, float]:
        """Return round → accuracy over all test samples, for the evaluated rounds."""
        return {r["round"]: r["accuracy"][rule]["weighted"] for r in self.evaluated if rule in r["accuracy"]}

    def client_accuracies(self, rule: str) -> list[float | None]:
        """Return each client's accuracy at the last evaluation; None without test samples."""
        return list(self.evaluated[-1]["accuracy"][rule]["clients"]) if self.evaluated else []

    def sent(self) -> dict[int, int]:
        """Return round → bytes sent since the start, by all parties in both directions."""
        total, result = 0, {}
        for record in self.rounds:
            total += record["bytes"]["up"] + record["bytes"]["down"]
            result[record["round"]] = total
        return result


def main_rule(rules: Iterable[str]) -> str:
    """Return the rule that headline numbers are about.

    That is ``global`` if there is one, else whichever of ``head`` and ``global_model`` the method names first.

    Example:
        >>> main_rule(["head", "local", "global"]), main_rule(["global_model", "head"])
        ('global', 'global_model')
    """
    names = list(rules)
    if "global" in names:
        return "global"
    return next((r for r in names if r in ("head", "global_model")), next(iter(names), "head"))


def load_run(path: Path, border: Border | None = None) -> RunData:
    """Read one run directory; a last line of ``rounds.jsonl`` that is still being written is left out.

    Args:
        path: The directory.
        border: Folder that links must not leave; by default the directory itself.

    Raises:
        CheckpointError: If a file is missing or damaged, or leads elsewhere.
    """
    border = border or Border(path)
    config, federation, summary, label = load_description(path, border)
    border.signature(path / "rounds.jsonl")
    run = RunData(path, config, federation, read_rounds(path / "rounds.jsonl"), summary, label)
    check_run(run)
    return run


def load_description(
    path: Path, border: Border | None = None
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None, str]:
    """Return what one run directory says beside its rounds: configuration, federation, summary if any, and label.

    Raises:
        CheckpointError: If a file is missing or damaged, or leads elsewhere.
    """
    border = border or Border(path)
    for name in ("config.toml", "federation.json", "summary.json"):
        border.signature(path / name)
    config = read_config(path / "config.toml")
    federation = read_federation(path / "federation.json")
    summary = read_summary(path / "summary.json")
    return config, federation, summary, (summary or {}).get("label") or _short(config["method"]["name"])


def check_run(run: RunData) -> None:
    """Compute what is asked of a run, so that whatever is wrong with its files comes to light here.

    Raises:
        CheckpointError: If its rounds do not agree with each other or with its clients.
    """
    where = run.directory / "rounds.jsonl"
    try:
        _ = run.seed, run.planned_rounds, run.facts, run.rules, run.sent()
        for record in run.evaluated:
            if set(record["accuracy"]) != set(run.rules):
                raise CheckpointError(f"{where}: round {record['round']} was scored by other rules than the rest")
        for rule in run.rules:
            run.accuracy(rule)
            found = run.client_accuracies(rule)
            if len(found) != len(run.clients):
                raise CheckpointError(
                    f"{where}: round {run.evaluated[-1]['round']} has {len(found)} accuracies for "
                    f"{len(run.clients)} clients"
                )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: not the rounds of one run ({type(error).__name__}: {error})") from None


def load_runs(paths: Sequence[Path], left_out: list[CheckpointError] | None = None) -> list[RunData]:
    """Read all runs at or below ``paths``: run directories, comparisons, or folders with either inside.

    Runs of a comparison that have not begun are left out, and a directory reached twice is read once. Links are
    followed as long as they stay below the path that was named.

    Args:
        paths: Folders.
        left_out: Takes the errors of damaged runs inside a folder, whose others are then read; None raises them.

    Raises:
        CheckpointError: If a path holds no run, or a file is missing or damaged.
    """
    runs: dict[Path, RunData] = {}
    for path in map(Path, paths):
        faults: list[CheckpointError] = []
        found = list(_runs_at(path, _Search(Border(path), faults if left_out is not None else None)))
        if not found and faults:
            raise faults[0]
        if not found:
            raise CheckpointError(f"{path}: no run here: expected config.toml and rounds.jsonl, or comparison.json")
        runs.update((run.directory.resolve(), run) for run in found)
        if left_out is not None:
            left_out += faults
    labels = tell_apart([run.label for run in runs.values()], [run.config for run in runs.values()])
    return [replace(run, label=label) for run, label in zip(runs.values(), labels, strict=True)]


def prototypes(run: RunData) -> dict[str, Tensor]:
    """Return the tensors of ``prototypes.safetensors``; none where the run has left no such file.

    Raises:
        CheckpointError: If the file is damaged.
    """
    from protofed.federation.files import read_tensors

    path = run.directory / "prototypes.safetensors"
    return read_tensors(path) if Border(run.directory).signature(path) else {}


def by_label(runs: Iterable[RunData]) -> dict[str, list[RunData]]:
    """Return label → its runs, both in order of appearance."""
    groups: dict[str, list[RunData]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    return groups


def by_exchange(runs: Iterable[RunData]) -> dict[str, list[RunData]]:
    """Return what crosses the network → the runs of such methods, the least first."""
    runs = list(runs)
    found = dict.fromkeys([*EXCHANGES, *(run.exchanges for run in runs)])
    groups = {what: [run for run in runs if run.exchanges == what] for what in found}
    return {what: group for what, group in groups.items() if group}


def settled(runs: Sequence[RunData]) -> list[RunData]:
    """Return the finished runs, or all if none has finished: averages must not mix late and early rounds."""
    return [r for r in runs if r.finished] or list(runs)


@dataclass
class _Search:
    """A search for runs below one folder.

    Attributes:
        border: Nothing beyond it is read.
        faults: Takes the errors of damaged runs; None raises them.
        visited: Folders that were looked at, by their real paths.
    """

    border: Border
    faults: list[CheckpointError] | None
    visited: set[Path] = field(default_factory=set)

    def load(self, path: Path) -> RunData | None:
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


def _runs_at(path: Path, search: _Search, depth: int = 0) -> Iterator[RunData]:
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


def _comparison(path: Path, search: _Search) -> Iterator[RunData]:
    runs = []
    try:
        search.border.signature(path / "comparison.json")
        listed = read_comparison(path / "comparison.json")
    except CheckpointError as error:
        search.note(error)
        return
    for entry in listed.runs:
        run = search.load(path / entry.folder) if (path / entry.folder / "rounds.jsonl").exists() else None
        if run is not None:
            runs.append((entry.method, entry.values, run))
    # An unfinished run does not know its label yet: it takes that of a finished run of the same method.
    labels = {method: run.label for method, _, run in runs if run.finished}
    for method, values, run in runs:
        yield replace(run, label=", ".join((labels.get(method, _short(method)), *values)), values=values)


def axes_of(path: Path) -> dict[str, list[str]]:
    """Return the names of the values along each axis of a comparison; empty where it has none.

    Raises:
        CheckpointError: If they are damaged.
    """
    where = Path(path) / "comparison.json"
    return read_comparison(where).axes if where.exists() else {}


def _short(method: str) -> str:
    """Return the class of a user's own method ``package.module:Class``, and any other name as it is."""
    return method.rpartition(":")[2]
