"""Search for good values of options by accuracy on validation samples, never on test samples."""

from __future__ import annotations

import re
import statistics
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from protofed.config.schema import Experiment, Tree, apply_overrides, comparison, parse_overrides, resolve
from protofed.errors import CheckpointError, ConfigError, ProtofedError
from protofed.experiments.batch import RunTask, claim, folder, run_tasks
from protofed.experiments.loading import load_data
from protofed.experiments.running import Measure, Progress
from protofed.experiments.sweeping import grid
from protofed.runs.records import RoundRecord
from protofed.runs.rules import main_rule
from protofed.runs.run import Run
from protofed.storage.files import read_json, write_json
from protofed.untrusted.decoding import decode

if TYPE_CHECKING:
    import optuna
    from pandas import DataFrame

FILE = "tuning.json"  #: File with the trials of a search
STARTUP = 10  #: Trials drawn at random before the model of the space decides
SETTLED = 5  #: Trials that must have ended before one is given up for being below their median


@dataclass(frozen=True)
class SearchRange:
    """An interval in which an option varies."""

    low: float
    high: float
    log: bool = False  #: Orders of magnitude are alike


Space = dict[str, SearchRange | tuple[Any, ...]]  #: An interval, or the values of a choice, by dotted name


@dataclass(frozen=True)
class Trial:
    """One try."""

    values: dict[str, Any]
    #: Mean over seeds of the best validation accuracy, in fractions; None if given up or failed
    score: float | None
    steps: dict[int, float]  #: Mean validation accuracy so far, by the number of rounds run with all seeds
    ended: Literal["complete", "pruned", "failed"] = "complete"
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the trial as plain values."""
        return {**vars(self), "steps": {str(step): score for step, score in self.steps.items()}}

    @classmethod
    def from_dict(cls, value: Any, space: Space, where: str) -> Trial:
        """Return a trial that was written."""
        found = decode(value, cls, where)
        if found.values.keys() != space.keys() or (found.score is None) == (found.ended == "complete"):
            raise CheckpointError(f"{where}: holds a trial of another search")
        return found


@dataclass(frozen=True)
class Tuned:
    """The outcome of a search."""

    directory: Path
    trials: list[Trial]
    unfinished: bool = False

    @property
    def best(self) -> Trial | None:
        """The trial with the highest score; None if none was completed."""
        done = [trial for trial in self.trials if trial.score is not None]
        return max(done, key=lambda trial: trial.score or 0.0, default=None)

    def to_frame(self) -> DataFrame:
        """Return one row per trial: its values by dotted name, its score, and how it ended."""
        from pandas import DataFrame

        return DataFrame({**t.values, "score": t.score, "ended": t.ended, "reason": t.reason} for t in self.trials)


def space_of(items: Iterable[str]) -> tuple[Space, Tree]:
    """Return the axes and plain overrides of ``NAME=LOW..HIGH[:log]``, ``NAME=VALUE,…`` or ``NAME=VALUE``.

    Example:
        >>> space_of(["method.lambda=0.1..10:log", "method.scaling=true,false", "rounds=4"])[0]["method.lambda"]
        SearchRange(low=0.1, high=10, log=True)
    """
    ranges: Space = {}
    rest = []
    for item in items:
        found = re.fullmatch(r"([^=]+)=(-?[\d.eE+-]*\d)\.\.(-?\d[\d.eE+-]*)(:log)?", item)
        if not found:
            rest.append(item)
            continue
        name, *ends, log = found.groups()
        low, high = (parse_overrides([f"x={end}"])["x"] for end in ends)
        if isinstance(low, str) or isinstance(high, str) or not low < high or (log and low <= 0):
            raise ConfigError(f"{item}: must be a range LOW..HIGH with LOW < HIGH, above 0 with :log")
        ranges[name.strip()] = SearchRange(low, high, bool(log))
    axes, plain = grid(rest)
    choices: Space = {name: tuple(given[name] for given in values.values()) for name, values in axes.items()}
    return {**ranges, **choices}, plain


def check_options(tree: Tree, method: str, space: Space) -> None:
    """Refuse options of a method that it does not have, which would vary without effect."""
    axes = {name: {"value": {name: value}} for name, value in _first(space).items()}
    section = {"methods": [method], "axes": axes}
    comparison({**tree, "compare": section})


@dataclass(frozen=True)
class _Attempt:
    """A trial to be run: all seeds in turn, given up where it stays below the median of the others."""

    label: str
    values: dict[str, Any]
    tasks: tuple[RunTask, ...]
    space: Space
    history: tuple[Trial, ...]

    def run(self, progress: Progress | None = None, deadline: float | None = None) -> Trial | None:
        """Run it; return None if the time is up before its end."""
        study = _study(self.space, self.history, 0)
        study.enqueue_trial(self.values)
        rule = str(self.tasks[0].tree["evaluation"]["rule"])
        watch = _Validation(progress or Progress(), study.ask(_distributions(self.space)), rule)
        try:
            for task in self.tasks:
                run = task.run(watch, deadline)
                if run is None:
                    return None
                watch.replay(run)
        except _PrunedError:
            return Trial(self.values, None, watch.steps, "pruned")
        return Trial(self.values, statistics.fmean(watch.best), watch.steps)


class _PrunedError(Exception):
    """The trial is not worth its remaining rounds."""


@dataclass
class _Validation(Progress):
    """Follows the validation accuracy of a trial; test accuracies of the records are never looked at."""

    to: Progress
    trial: optuna.Trial
    rule: str
    best: list[float] = field(default_factory=list)
    steps: dict[int, float] = field(default_factory=dict)
    now: float = 0.0
    done: int = 0

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        self.to.started(label, rounds, done, directory)

    def round(self, label: str, record: RoundRecord) -> None:
        self.to.round(label, record)
        self._take(record)
        if self.trial.should_prune():
            raise _PrunedError

    def replay(self, run: Run) -> None:
        """Take in all rounds of a finished run."""
        self.now = 0.0
        for record in run.rounds:
            self._take(record)
        self.best.append(self.now)
        self.done, self.now = self.done + run.last_round, 0.0

    def _take(self, record: RoundRecord) -> None:
        if not record.validation:
            return
        scores = record.validation.weighted
        self.now = max(self.now, scores[main_rule(scores, self.rule)])
        step = self.done + record.round
        if step not in self.steps:
            self.steps[step] = statistics.fmean([*self.best, self.now])
            self.trial.report(self.steps[step], step)


def tune(
    tree: Tree,
    space: Space,
    method: str,
    seeds: Sequence[int],
    directory: Path,
    *,
    trials: int,
    jobs: int = 1,
    deadline: float | None = None,
    progress: Progress | None = None,
    measure: Measure | None = None,
) -> Tuned:
    """Search a space by a tree of Parzen estimators, with trials below the median given up.

    The same call goes on where an earlier one stopped. With one number of jobs, the same trials are tried on every
    machine.

    Raises:
        ConfigError: If nothing varies, or there are no validation samples.
    """
    _optuna()
    if not space:
        raise ConfigError("nothing to tune: give a range such as method.lambda=0.1..10:log, or several values")
    experiment = _experiments(tree, _first(space), method, seeds)[0]
    if not any(client.validation is not None for client in load_data(experiment).clients):
        raise ConfigError("tuning needs validation samples: set data.validation_fraction=0.1")
    claim(directory)
    identity = _identity(tree, space, method, seeds)
    history = _read(directory, identity, space)
    progress = progress or Progress()
    progress.planned(trials, jobs)
    while len(history) < trials:
        study = _study(space, history, len(history))
        chosen = [study.ask(_distributions(space)).params for _ in range(min(jobs, trials - len(history)))]
        attempts = [
            _Attempt(
                f"trial {number}",
                values,
                tuple(
                    RunTask(e.to_tree(), directory / folder(e), f"trial {number} seed {e.seed}", True, measure)
                    for e in _experiments(tree, values, method, seeds)
                ),
                space,
                tuple(history),
            )
            for number, values in enumerate(chosen, start=len(history))
        ]
        ended: dict[int, Trial | None] = {}
        for place, outcome in run_tasks(attempts, jobs=jobs, deadline=deadline, keep_going=True):
            failed = isinstance(outcome, ProtofedError)
            ended[place] = Trial(chosen[place], None, {}, "failed", str(outcome)) if failed else outcome
            progress.advanced()
        for place in sorted(ended):
            trial = ended[place]
            if trial is None:  # what comes after it is found among the finished runs when the search goes on
                return Tuned(directory, history, True)
            history.append(trial)
            content = {**identity, "trials": [each.to_dict() for each in history]}
            write_json(directory / FILE, content)
        if all(trial.ended == "failed" for trial in history) and len(history) >= 3:
            raise ConfigError(f"all trials fail: {history[-1].reason}")
    return Tuned(directory, history[:trials])


def _first(space: Space) -> dict[str, Any]:
    return {name: part.low if isinstance(part, SearchRange) else part[0] for name, part in space.items()}


def _experiments(tree: Tree, values: Mapping[str, Any], method: str, seeds: Sequence[int]) -> list[Experiment]:
    chosen = apply_overrides(tree, values)
    return [resolve(chosen, method=method, seed=seed) for seed in seeds]


def _identity(tree: Tree, space: Space, method: str, seeds: Sequence[int]) -> Tree:
    """Return the description that trials of one search have in common."""
    parts = {n: vars(part) if isinstance(part, SearchRange) else list(part) for n, part in space.items()}
    keys = [folder(experiment) for experiment in _experiments(tree, _first(space), method, seeds)]
    return {"space": parts, "method": method, "seeds": list(seeds), "runs": keys}


def _read(directory: Path, identity: Tree, space: Space) -> list[Trial]:
    path = directory / FILE
    if not path.is_file():
        return []
    found = read_json(path)
    for name, value in identity.items():
        if found.get(name) != value:
            raise ConfigError(f"{path}: belongs to another search ({name} differ): choose another --out")
    if not isinstance(found.get("trials"), list):
        raise CheckpointError(f"{path}: lacks the list of trials")
    return [Trial.from_dict(value, space, f"{path}") for value in found["trials"]]


def _optuna() -> Any:
    try:
        import optuna
    except ImportError:
        raise ConfigError("tune needs optuna: pip install 'protofed[tune]'") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _distributions(space: Space) -> dict[str, Any]:
    kinds = _optuna().distributions

    def one(part: SearchRange | tuple[Any, ...]) -> Any:
        if not isinstance(part, SearchRange):
            return kinds.CategoricalDistribution(part)
        whole = isinstance(part.low, int) and isinstance(part.high, int)
        kind = kinds.IntDistribution if whole else kinds.FloatDistribution
        return kind(part.low, part.high, log=part.log)

    return {name: one(part) for name, part in space.items()}


def _study(space: Space, history: Sequence[Trial], seed: int) -> Any:
    """Return a study of the trials so far, whose proposals follow from them and the seed."""
    optuna = _optuna()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optuna calls some of its options experimental
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP, constant_liar=True)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=SETTLED, n_warmup_steps=1)
        study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
        states = optuna.trial.TrialState
        for trial in history:
            state = {"complete": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}[trial.ended]
            study.add_trial(
                optuna.trial.create_trial(
                    state=state,
                    params=trial.values,
                    distributions=_distributions(space),
                    value=trial.score,
                    intermediate_values=trial.steps,
                )
            )
    return study
