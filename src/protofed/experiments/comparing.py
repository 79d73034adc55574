"""Comparisons of methods: several runs on the same federation, in turn or in parallel."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import tomli_w

from protofed.config.remote import code_of
from protofed.config.schema import (
    CompareOptions,
    Experiment,
    Tree,
    apply_overrides,
    compares_all,
    comparison,
    load_recipe,
    resolve,
    without_none,
)
from protofed.errors import ConfigError
from protofed.experiments import shown
from protofed.experiments.assemble import assemble
from protofed.experiments.batch import MARK, RunTask, at_once, claim, folder, run_tasks
from protofed.experiments.loading import load_data
from protofed.experiments.rundir import RunDirectory
from protofed.experiments.running import Measure, Progress, Report
from protofed.runs.comparison import ComparisonFile, ListedRun
from protofed.runs.files import read_comparison
from protofed.runs.run import Run
from protofed.storage.files import is_occupied, remove_partial, write_json, write_text

if TYPE_CHECKING:
    from pandas import DataFrame

log = logging.getLogger("protofed")
LIST = "comparison.json"  #: File that says which folder of a comparison holds which run
RECIPE = "recipe.toml"  #: File with the recipe of a comparison, with its overrides
R = TypeVar("R", bound=Run)


class Cell(NamedTuple):
    """The position of one run in a comparison."""

    method: str
    values: tuple[str, ...]  #: Along the comparison's axes
    seed: int

    @property
    def label(self) -> str:
        """The method and the values along the axes; runs with the same label differ only in their seed."""
        return ", ".join((self.method, *self.values))

    @property
    def folder(self) -> str:
        """Name of the run directory."""
        names = [self.method.rpartition(":")[2], *self.values]
        words = ["".join(c if c.isalnum() or c in "-_" else "-" for c in name) for name in names]
        return f"{'_'.join(words)}-seed{self.seed}"


@dataclass(frozen=True, repr=False)
class Comparison(Generic[R]):
    """The results of several methods on one federation, with the same seeds, and possibly along further axes."""

    directory: Path  #: One subfolder per run
    runs: dict[str, list[R]]  #: In the order of the seeds, by label (the method and the values along the axes)
    axes: dict[str, list[str]]
    waiting: list[str] = field(default_factory=list)  #: Labels of runs for which the time was up
    failed: dict[str, str] = field(default_factory=dict)

    @property
    def report(self) -> Path:
        """Path of the HTML report."""
        return self.directory / "report.html"

    def __repr__(self) -> str:
        """Return the comparison in one line."""
        return shown.comparison_line(self.directory, self.runs)

    def to_frame(self) -> DataFrame:
        """Return one row per run and inference rule.

        Its columns are ``method`` (the arm), one per axis, ``seed``, ``rule``, ``main`` (the method's main rule),
        ``final`` and ``best`` accuracy, ``client_mean`` and ``client_std`` over clients, ``union`` and ``unseen``
        in percent; ``rounds``, bytes ``up`` and ``down`` of all clients together, ``seconds`` and ``directory``.
        """
        from pandas import DataFrame

        return DataFrame([row for group in self.runs.values() for run in group for row in _rows(run, self.axes)])

    @property
    def summary(self) -> dict[str, Any]:
        """Mean and standard deviation over seeds of ``best`` and ``final``, by label and rule."""
        return {
            label: {
                rule: {
                    f"{figure}_{name}": function([getattr(run.outcome.accuracy[rule], figure) for run in runs])
                    for figure in ("best", "final")
                    for name, function in (("mean", statistics.fmean), ("std", _std))
                }
                for rule in runs[0].outcome.accuracy
            }
            for label, runs in self.runs.items()
            if runs
        }


@dataclass(frozen=True)
class Plan:
    """The runs of a comparison, checked as a whole before the first one starts."""

    options: CompareOptions
    experiments: dict[Cell, Experiment]
    #: Find runs by their configuration: what is finished is never run again, cells of the same configuration share
    #: a run, and failures do not stop the others
    keyed: bool = False
    tree: Tree = field(default_factory=dict)

    @property
    def recipe(self) -> str:
        """The recipe's name."""
        return next(iter(self.experiments.values())).recipe

    @property
    def axes(self) -> dict[str, list[str]]:
        """Names of the values along each axis."""
        return {axis: list(values) for axis, values in self.options.axes.items()}

    @classmethod
    def of(cls, tree: Tree, *, keyed: bool = False) -> Plan:
        """Resolve every run of ``tree``, and assemble each method once with every combination.

        Of keyed runs, of which there may be thousands, those are assembled that differ from a method's first one
        along one axis, at its end. Of ``compare.methods=all``, methods that do not suit the data are left out.
        """
        options, every = comparison(tree), compares_all(tree)
        if not options.methods:
            raise ConfigError("nothing to compare: name methods with --methods a,b,c")
        if len(set(options.methods)) < len(options.methods) or len(set(options.seeds)) < len(options.seeds):
            raise ConfigError("compare.methods and compare.seeds must not repeat a name")
        trees = {values: apply_overrides(tree, given) for values, given in options.combinations().items()}
        seeds = options.seeds or (resolve(tree, method=options.methods[0]).seed,)
        # Runs with the same seed are adjacent, so that its data are loaded once for all methods.
        cells = [Cell(m, values, s) for s in seeds for m in options.methods for values in trees]
        experiments = {cell: resolve(trees[cell.values], method=cell.method, seed=cell.seed) for cell in cells}
        first, last = cells[0].values, cells[-1].values
        ends = {(*first[:i], last[i], *first[i + 1 :]) for i in range(len(first))} | {first}
        for cell in cells:
            if cell.seed == seeds[0] and (cell.values in ends or not keyed) and cell.method in options.methods:
                try:
                    assemble(experiments[cell])[0].executor.close()
                except ConfigError as error:
                    kept = tuple(name for name in options.methods if name != cell.method)
                    if not every or not kept:
                        raise
                    log.warning("compare.methods=all: %s is left out: %s", cell.method, error)
                    options = replace(options, methods=kept)
        chosen = {cell: experiment for cell, experiment in experiments.items() if cell.method in options.methods}
        places = {cell.folder: cell for cell in chosen}
        if not keyed and len(places) < len(chosen):
            one = next(cell for cell in chosen if places[cell.folder] != cell)
            other = places[one.folder]
            raise ConfigError(f"{one.label} and {other.label} are both called {one.folder} in results: rename one")
        return cls(options, chosen, keyed, tree)

    def tasks(self, directory: Path, *, resume: bool, measure: Measure | None = None) -> dict[Cell, RunTask]:
        """Return the task of every cell, those of one round first, whose answers are there at once."""
        several = len({cell.seed for cell in self.experiments}) > 1
        return {
            cell: RunTask(
                experiment.to_tree(),
                directory / (folder(experiment) if self.keyed else cell.folder),
                f"{cell.label} seed {cell.seed}" if several else cell.label,
                resume,
                measure,
            )
            for cell, experiment in sorted(self.experiments.items(), key=lambda item: item[1].rounds > 1)
        }

    def run(
        self,
        directory: Path,
        *,
        resume: bool,
        progress: Progress,
        jobs: int,
        report: Report,
        measure: Measure | None = None,
        budget: float | None = None,
    ) -> Comparison[Run]:
        """Run all experiments and write the report.

        Args:
            resume: The directory may contain a part of this comparison.
            jobs: Runs at a time; 0 for as many as pays.
            budget: Seconds after which no further round begins.

        Raises:
            ProtofedError: If a run fails that is not keyed, or, before anything is written, if the directory holds
                anything but a part of this comparison.
        """
        deadline = None if budget is None else time.monotonic() + budget
        if self.keyed:
            claim(directory)
        tasks = self.tasks(directory, resume=resume or self.keyed, measure=measure)
        if not self.keyed:
            self._check(directory, tasks, resume)
        self._list(directory, tasks)
        places = {task.directory: task for task in tasks.values()}
        distinct, unasked = list(places.values()), not jobs
        jobs = jobs or at_once(len(distinct))
        if unasked and jobs > 1:  # else the data need not be read here, too
            samples = sum(len(client.train) for client in load_data(next(iter(self.experiments.values()))).clients)
            rounds = (self.experiments[cell].rounds for cell, task in tasks.items() if not task.finished)
            jobs = at_once(len(distinct), samples * sum(rounds))
        progress.planned(len(distinct), jobs)
        outcomes = dict(run_tasks(distinct, jobs=jobs, progress=progress, deadline=deadline, keep_going=self.keyed))
        of = {task.directory: outcomes[place] for place, task in enumerate(distinct)}
        runs: dict[str, list[Run]] = {cell.label: [] for cell in sorted(self.experiments, key=self._place)}
        waiting, failed = [], {}
        for cell, task in tasks.items():
            outcome = of[task.directory]
            if isinstance(outcome, Run):
                name = outcome.label if outcome.method == cell.method else cell.method  # as runs are loaded
                label = ", ".join((name, *cell.values))
                runs[cell.label].append(replace(outcome, label=label, values=cell.values, listed=cell.method))
            elif outcome is None:
                waiting.append(task.label)
            else:
                failed[task.label] = str(outcome)
        result = Comparison(directory, runs, self.axes, waiting, failed)
        if any(runs.values()):
            report([directory], result.report)
        return result

    def _check(self, directory: Path, tasks: dict[Cell, RunTask], resume: bool) -> None:
        """Refuse a directory that holds anything but a part of this comparison."""
        if (directory / MARK).is_file():
            raise ConfigError(f"{directory} holds a sweep or a search: repeat its command, or choose another --out")
        if (directory / LIST).is_file():
            if not resume:
                raise ConfigError(
                    f"{directory} holds a comparison: pass --resume to continue it, or choose another --out"
                )
            known = {task.directory.name for task in tasks.values()}
            left = [run.directory for run in read_comparison(directory / LIST).runs if run.directory not in known]
            if left:
                raise ConfigError(
                    f"{directory} holds a comparison with another configuration ({left[0]} is no run of this one): "
                    "choose another --out"
                )
        elif is_occupied(directory, but=RECIPE):
            raise ConfigError(f"{directory} is not empty and holds no comparison: choose another --out")
        for cell, task in tasks.items():
            if (task.directory / "config.toml").is_file():
                RunDirectory(task.directory).differs(self.experiments[cell])

    def _list(self, directory: Path, tasks: dict[Cell, RunTask]) -> None:
        """Write the recipe, and which folder holds which run."""
        remove_partial(directory)
        # Its methods are those to compare.
        own = {name: value for name, value in self.tree.get("method", {}).items() if name != "name"}
        write_text(directory / RECIPE, tomli_w.dumps(without_none({**self.tree, "method": own})))
        seeds = list(dict.fromkeys(cell.seed for cell in self.experiments))
        listed = [ListedRun(c.method, t.directory.name, c.values, c.seed) for c, t in tasks.items()]
        content = ComparisonFile(listed, self.axes, self.recipe, self.options.methods, seeds)
        write_json(directory / LIST, content.to_dict())

    def _place(self, cell: Cell) -> tuple[int, list[int]]:
        """Return the position of a cell's row in a table."""
        axes = zip(cell.values, self.axes.values(), strict=True)
        return self.options.methods.index(cell.method), [values.index(value) for value, values in axes]


def _rows(run: Run, axes: Mapping[str, Sequence[str]]) -> Iterator[dict[str, Any]]:
    """Yield one row of a frame per inference rule of a run."""
    traffic = run.outcome.communication.bytes_total
    for name, found in run.outcome.accuracy.items():
        names = ("final", "best", "client_mean", "client_std", "union", "unseen")
        shares = {part: found.figure(part) for part in names}
        yield {
            "method": run.arm,
            **dict(zip(axes, run.values, strict=False)),
            "seed": run.seed,
            "rule": name,
            "main": name == run.main_rule,
            **{part: None if share is None else 100 * share for part, share in shares.items()},
            "rounds": run.outcome.rounds,
            "up": traffic["up"],
            "down": traffic["down"],
            "seconds": run.outcome.seconds["total"],
            "directory": str(run.directory),
        }


def read_recipe(directory: Path) -> Tree:
    """Return the recipe of the run or the comparison that a directory holds.

    Raises:
        ConfigError: If it holds neither, or its recipe cannot be read or names code, which only a recipe that is
            named explicitly may do.
    """
    path = next((path for name in ("config.toml", RECIPE) if (path := directory / name).is_file()), None)
    if path is None:
        raise ConfigError(f"{directory}: holds no recipe of a run or comparison to continue: name the recipe")
    tree = load_recipe(path)
    code = next(iter(code_of(tree)), "")
    if code:
        raise ConfigError(
            f"{path}: names code of its own ({code}): if you trust it, name the recipe, such as this file"
        )
    return tree


def _std(values: Sequence[float]) -> float:
    """Return the sample standard deviation, 0 for a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0
