"""Comparisons of methods: several runs on the same federation, in turn or in parallel."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from protofed.errors import ConfigError, ProtofedError
from protofed.experiments import shown
from protofed.experiments.assemble import assemble
from protofed.experiments.config import CompareOptions, Experiment, Tree, apply_overrides, comparison, resolve
from protofed.experiments.executors import PRELOAD
from protofed.experiments.running import Progress, Report, Run, run_experiment
from protofed.files import write_json
from protofed.runs import ComparisonFile, ListedRun
from protofed.training.workers import end, process_context, stay_with_parent


class Cell(NamedTuple):
    """The position of one run in a comparison.

    Attributes:
        method: Name of the method.
        values: Names of the run's values along the comparison's axes.
        seed: Seed of the run.
    """

    method: str
    values: tuple[str, ...]
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
class Comparison:
    """The results of several methods on the same federation, with the same seeds, and possibly along further axes.

    Attributes:
        directory: Directory of the comparison, with one subfolder per run.
        runs: Runs in the order of the seeds, by label (the method and the values along the axes).
        axes: Names of the values along each axis.
    """

    directory: Path
    runs: dict[str, list[Run]]
    axes: dict[str, list[str]]

    @property
    def report(self) -> Path:
        """Path of the HTML report."""
        return self.directory / "report.html"

    def __repr__(self) -> str:
        """Return the comparison in one line."""
        return shown.comparison_line(self.directory, self.runs)

    def _repr_html_(self) -> str:
        """Return a table and a small plot, for notebooks."""
        return shown.comparison_html(self.directory, self.runs)

    @property
    def summary(self) -> dict[str, Any]:
        """Mean and standard deviation over seeds of ``best`` and ``final``, by label and rule."""
        return {
            label: {
                rule: {
                    f"{figure}_{name}": function([run.summary["accuracy"][rule][figure] for run in runs])
                    for figure in ("best", "final")
                    for name, function in (("mean", statistics.fmean), ("std", _std))
                }
                for rule in runs[0].summary["accuracy"]
            }
            for label, runs in self.runs.items()
        }


@dataclass(frozen=True)
class Plan:
    """The runs of a comparison, checked as a whole before the first one starts.

    Attributes:
        trees: The recipe with the overrides of each combination of values along the axes.
        options: Methods, seeds and axes.
        experiments: The experiments, in the order of the runs.
    """

    trees: dict[tuple[str, ...], Tree]
    options: CompareOptions
    experiments: dict[Cell, Experiment]

    @property
    def recipe(self) -> str:
        """The recipe's name."""
        return next(iter(self.experiments.values())).recipe

    @classmethod
    def of(cls, tree: Tree) -> Plan:
        """Resolve every run of ``tree``, and assemble each method once with every combination.

        Raises:
            ProtofedError: If any of the runs is invalid.
        """
        options = comparison(tree)
        if not options.methods:
            raise ConfigError("nothing to compare: name methods with --methods a,b,c")
        if len(set(options.methods)) < len(options.methods) or len(set(options.seeds)) < len(options.seeds):
            raise ConfigError("compare.methods and compare.seeds must not repeat a name")
        trees = {values: apply_overrides(tree, given) for values, given in options.combinations().items()}
        seeds = options.seeds or (resolve(tree, method=options.methods[0]).seed,)
        # Runs with the same seed are adjacent, so that its data are loaded once for all methods.
        cells = [Cell(m, values, s) for s in seeds for m in options.methods for values in trees]
        experiments = {cell: resolve(trees[cell.values], method=cell.method, seed=cell.seed) for cell in cells}
        for cell in cells:
            if cell.seed == seeds[0]:
                assemble(experiments[cell])[0].executor.close()
        return cls(trees, options, experiments)

    def run(self, directory: Path, *, resume: bool, progress: Progress, jobs: int, report: Report) -> Comparison:
        """Run all experiments and write the report.

        Args:
            directory: Directory of the comparison, in which one subfolder per run is created.
            resume: Whether it may contain a part of this comparison.
            progress: Receives progress reports; with several jobs, only of finished runs.
            jobs: Number of parallel runs, each in a process of its own.
            report: Writes the HTML report.

        Raises:
            ProtofedError: If a run fails.
        """
        seeds = list(dict.fromkeys(cell.seed for cell in self.experiments))
        tasks = [
            _Task(
                self.trees[cell.values],
                cell,
                directory / cell.folder,
                cell.label if len(seeds) == 1 else f"{cell.label} seed {cell.seed}",
                resume,
            )
            for cell in self.experiments
        ]
        axes = {axis: list(values) for axis, values in self.options.axes.items()}
        listed = [ListedRun(t.cell.method, t.directory.name, t.cell.values, t.cell.seed) for t in tasks]
        content = ComparisonFile(listed, axes, self.recipe, self.options.methods, seeds)
        write_json(directory / "comparison.json", content.to_dict())
        finished = _in_processes(tasks, jobs, progress) if jobs > 1 else [task.run(progress) for task in tasks]
        runs: dict[str, list[Run]] = {cell.label: [] for cell in sorted(self.experiments, key=self._place)}
        for task, run in zip(tasks, finished, strict=True):
            runs[task.cell.label].append(run)
        result = Comparison(directory, runs, axes)
        report([directory], result.report)
        return result

    def _place(self, cell: Cell) -> tuple[int, int]:
        """Return the position of a cell's row in a table."""
        return self.options.methods.index(cell.method), list(self.trees).index(cell.values)


@dataclass(frozen=True)
class _Task:
    """One run of a comparison, in plain values that can be sent to another process."""

    tree: Tree
    cell: Cell
    directory: Path
    label: str
    resume: bool

    def run(self, progress: Progress | None = None) -> Run:
        experiment = resolve(self.tree, method=self.cell.method, seed=self.cell.seed)
        return run_experiment(experiment, self.directory, resume=self.resume, progress=progress, label=self.label)


def _in_processes(tasks: Sequence[_Task], jobs: int, progress: Progress) -> list[Run]:
    """Run tasks, ``jobs`` at a time; after a failure, no further ones are started."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(jobs, process_context(PRELOAD), _begin, (threads,)) as pool:
        waiting = {pool.submit(task.run): task for task in tasks}
        try:
            for future in as_completed(waiting):
                progress.finished(waiting[future].label, future.result())
        except BrokenProcessPool:
            raise ProtofedError(
                f"one of {jobs} processes (--jobs) died, perhaps for lack of memory: continue with the same "
                "command, --resume and fewer jobs"
            ) from None
        except KeyboardInterrupt:
            end(pool)  # the interrupted runs can be resumed
            raise
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        return [future.result() for future in waiting]


def _begin(threads: int) -> None:
    """Set up a process of the pool."""
    stay_with_parent()
    torch.set_num_threads(threads)


def _std(values: Sequence[float]) -> float:
    """Return the sample standard deviation, 0 for a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0
