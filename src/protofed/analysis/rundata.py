"""Runs read back from disk: one directory, a comparison, or a folder of either."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofed.analysis._files import read_federation, read_object, read_rounds, read_toml
from protofed.analysis._labels import tell_apart
from protofed.analysis.summary import summarise
from protofed.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

RULE_ORDER = ("head", "global_model", "local", "global", "global_own", "etf")
EXCHANGES = ("nothing", "prototypes", "logits", "part of the weights", "all weights")
"""What may cross the network, the least first."""


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


def load_run(path: Path) -> RunData:
    """Read one run directory; a last line of ``rounds.jsonl`` that is still being written is left out.

    Raises:
        CheckpointError: If a file is missing or damaged.
    """
    config, federation, summary, label = load_description(path)
    return RunData(path, config, federation, read_rounds(path / "rounds.jsonl"), summary, label)


def load_description(path: Path) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None, str]:
    """Return what one run directory says beside its rounds: configuration, federation, summary if any, and label.

    Raises:
        CheckpointError: If a file is missing or damaged.
    """
    config = read_toml(path / "config.toml")
    federation = read_federation(path / "federation.json")
    summary = read_object(path / "summary.json") if (path / "summary.json").is_file() else None
    method = config.get("method")
    named = method.get("name") if isinstance(method, dict) else None
    if not isinstance(named, str):
        raise CheckpointError(f"{path / 'config.toml'}: lacks [method] name: this is no resolved configuration")
    return config, federation, summary, (summary or {}).get("label") or _short(named)


def load_runs(paths: Sequence[Path]) -> list[RunData]:
    """Read all runs at or below ``paths``: run directories, comparisons, or folders with either inside.

    Runs of a comparison that have not begun are left out, and a directory reached twice is read once.

    Raises:
        CheckpointError: If a path holds no run, or a file is missing or damaged.
    """
    runs: dict[Path, RunData] = {}
    for path in paths:
        found = list(_runs_at(Path(path)))
        if not found:
            raise CheckpointError(f"{path}: no run here: expected config.toml and rounds.jsonl, or comparison.json")
        runs.update((run.directory.resolve(), run) for run in found)
    labels = tell_apart([run.label for run in runs.values()], [run.config for run in runs.values()])
    return [replace(run, label=label) for run, label in zip(runs.values(), labels, strict=True)]


def prototypes(run: RunData) -> dict[str, Tensor]:
    """Return the tensors of ``prototypes.safetensors``; none where the run has left no such file.

    Raises:
        CheckpointError: If the file is damaged.
    """
    from protofed.federation.files import read_tensors

    path = run.directory / "prototypes.safetensors"
    return read_tensors(path) if path.is_file() else {}


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


def _runs_at(path: Path) -> Iterator[RunData]:
    if (path / "comparison.json").is_file():
        yield from _comparison(path)
    elif (path / "config.toml").is_file() or (path / "rounds.jsonl").is_file():
        yield load_run(path)
    elif path.is_dir():
        for below in sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")):
            yield from _runs_at(below)


def _comparison(path: Path) -> Iterator[RunData]:
    entries = read_object(path / "comparison.json").get("runs")
    try:
        places = [
            (str(entry["method"]), tuple(map(str, entry.get("values", ()))), path / entry["directory"])
            for entry in entries or ()
        ]
    except (TypeError, KeyError):
        raise CheckpointError(f"{path / 'comparison.json'}: runs must list method, seed and directory") from None
    runs = [(m, values, load_run(p)) for m, values, p in places if (p / "rounds.jsonl").is_file()]
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
    found = read_object(where).get("axes", {}) if where.is_file() else {}
    if not isinstance(found, dict) or not all(isinstance(v, list) and v for v in found.values()):
        raise CheckpointError(f"{where}: axes must be a table of lists of names")
    return {str(axis): [str(name) for name in names] for axis, names in found.items()}


def _short(method: str) -> str:
    """Return the class of a user's own method ``package.module:Class``, and any other name as it is."""
    return method.rpartition(":")[2]
