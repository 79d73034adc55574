"""Comparing methods: several runs on the same federation, one after the other or several at a time."""

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
from protofed.experiments.assemble import assemble
from protofed.experiments.config import CompareOptions, Experiment, Tree, apply_overrides, comparison, resolve
from protofed.experiments.running import Progress, Run, run_experiment, write_report
from protofed.federation.files import write_json
from protofed.training.workers import end, process_context, stay_with_parent


class Cell(NamedTuple):
    """What one run of a comparison is of.

    Attributes:
        method: Its method.
        values: Names of its values along the comparison's axes.
        seed: Its seed.
    """

    method: str
    values: tuple[str, ...]
    seed: int

    @property
    def label(self) -> str:
        """The method, with the values along the axes: runs of one label differ in their seed."""
        return ", ".join((self.method, *self.values))

    @property
    def folder(self) -> str:
        """Name of its run directory."""
        names = [self.method.rpartition(":")[2], *self.values]
        words = ["".join(c if c.isalnum() or c in "-_" else "-" for c in name) for name in names]
        return f"{'_'.join(words)}-seed{self.seed}"


@dataclass(frozen=True)
class Comparison:
    """Several methods on the same federation, each with the same seeds, and perhaps along further axes.

    Attributes:
        directory: Where its files are; one folder per run below.
        runs: By label (the method, with its values along the axes), in the order of the seeds.
        axes: Names of the values along each axis.
    """

    directory: Path
    runs: dict[str, list[Run]]
    axes: dict[str, list[str]]

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.directory / "report.html"

    @property
    def summary(self) -> dict[str, Any]:
        """Per label and rule: mean and standard deviation over seeds of ``best`` and ``final``."""
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
    """What a comparison will run: checked as a whole before its first run starts.

    Attributes:
        trees: The recipe with the overrides of each combination of values along the axes.
        options: Methods, seeds and axes.
        experiments: What is run, in its order.
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
            ProtofedError: For whatever is wrong with any of them.
        """
        options = comparison(tree)
        if not options.methods:
            raise ConfigError("nothing to compare: name methods with --methods a,b,c")
        if len(set(options.methods)) < len(options.methods) or len(set(options.seeds)) < len(options.seeds):
            raise ConfigError("compare.methods and compare.seeds must not repeat a name")
        trees = {values: apply_overrides(tree, given) for values, given in options.combinations().items()}
        seeds = options.seeds or (resolve(tree, method=options.methods[0]).seed,)
        # Seed by seed, so that the data of a seed are loaded once for all methods.
        cells = [Cell(m, values, s) for s in seeds for m in options.methods for values in trees]
        experiments = {cell: resolve(trees[cell.values], method=cell.method, seed=cell.seed) for cell in cells}
        for cell in cells:
            if cell.seed == seeds[0]:
                assemble(experiments[cell])[0].executor.close()
        return cls(trees, options, experiments)

    def run(self, directory: Path, *, resume: bool, progress: Progress, jobs: int) -> Comparison:
        """Run everything below ``directory`` and write the report."""
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
        entries = [
            {
                "method": t.cell.method,
                "seed": t.cell.seed,
                "directory": t.directory.name,
                **({"values": list(t.cell.values)} if axes else {}),
            }
            for t in tasks
        ]
        found: Tree = {"recipe": self.recipe, "methods": list(self.options.methods), "seeds": seeds}
        found |= {"axes": axes} if axes else {}
        write_json(directory / "comparison.json", {**found, "runs": entries})
        finished = _in_processes(tasks, jobs, progress) if jobs > 1 else [task.run(progress) for task in tasks]
        runs: dict[str, list[Run]] = {cell.label: [] for cell in sorted(self.experiments, key=self._place)}
        for task, run in zip(tasks, finished, strict=True):
            runs[task.cell.label].append(run)
        result = Comparison(directory, runs, axes)
        write_report([directory], result.report)
        return result

    def _place(self, cell: Cell) -> tuple[int, int]:
        """Return where a cell's row stands in a table."""
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
        return run_experiment(
            experiment, self.directory, resume=self.resume, progress=progress, label=self.label, report=False
        )


def _in_processes(tasks: Sequence[_Task], jobs: int, progress: Progress) -> list[Run]:
    """Run tasks ``jobs`` at a time; the first failure stops those that have not begun."""
    threads = max(1, (os.cpu_count() or 1) // jobs)
    with ProcessPoolExecutor(jobs, process_context(), _begin, (threads,)) as pool:
        waiting = {pool.submit(task.run): task for task in tasks}
        try:
            for future in as_completed(waiting):
                progress.finished(waiting[future].label, future.result())
        except BrokenProcessPool:
            raise ProtofedError(
                f"a process died, one of --jobs {jobs}: short of memory? The same command with --resume and "
                "fewer jobs continues"
            ) from None
        except KeyboardInterrupt:
            end(pool)  # runs that have begun can be resumed
            raise
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        return [future.result() for future in waiting]


def _begin(threads: int) -> None:
    """Set up a process that takes its share of the runs."""
    stay_with_parent()
    torch.set_num_threads(threads)


def _std(values: Sequence[float]) -> float:
    """Return the sample standard deviation, 0 for a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0
