"""Comparing methods: several runs on the same federation, one after the other or several at a time."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from protofed.errors import ConfigError, ProtofedError
from protofed.experiments.assemble import assemble
from protofed.experiments.config import CompareOptions, Experiment, Tree, comparison, resolve
from protofed.experiments.running import Progress, Run, run_experiment, write_report
from protofed.federation.files import write_json
from protofed.training.workers import end, process_context, stay_with_parent


@dataclass(frozen=True)
class Comparison:
    """Several methods on the same federation, each with the same seeds.

    Attributes:
        directory: Where its files are; one folder per run below.
        runs: By method, in the order of the seeds.
    """

    directory: Path
    runs: dict[str, list[Run]]

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.directory / "report.html"

    @property
    def summary(self) -> dict[str, Any]:
        """Per method and rule: mean and standard deviation over seeds of ``best`` and ``final``."""
        return {
            method: {
                rule: {
                    f"{figure}_{name}": function([run.summary["accuracy"][rule][figure] for run in runs])
                    for figure in ("best", "final")
                    for name, function in (("mean", statistics.fmean), ("std", _std))
                }
                for rule in runs[0].summary["accuracy"]
            }
            for method, runs in self.runs.items()
        }


@dataclass(frozen=True)
class Plan:
    """What a comparison will run: checked as a whole before its first run starts.

    Attributes:
        tree: The recipe with its overrides.
        options: Methods and seeds.
        experiments: By method and seed, in the order in which they run.
    """

    tree: Tree
    options: CompareOptions
    experiments: dict[tuple[str, int], Experiment]

    @property
    def recipe(self) -> str:
        """The recipe's name."""
        return next(iter(self.experiments.values())).recipe

    @classmethod
    def of(cls, tree: Tree) -> Plan:
        """Resolve every run of ``tree``, and assemble each method once.

        Raises:
            ProtofedError: For whatever is wrong with any of them.
        """
        options = comparison(tree)
        if not options.methods:
            raise ConfigError("nothing to compare: name methods with --methods a,b,c")
        if len(set(options.methods)) < len(options.methods) or len(set(options.seeds)) < len(options.seeds):
            raise ConfigError("compare.methods and compare.seeds must not repeat a name")
        seeds = options.seeds or (resolve(tree, method=options.methods[0]).seed,)
        # Seed by seed, so that the data of a seed are loaded once for all methods.
        experiments = {(m, s): resolve(tree, method=m, seed=s) for s in seeds for m in options.methods}
        for method in options.methods:
            assemble(experiments[method, seeds[0]])[0].executor.close()
        return cls(tree, options, experiments)

    def run(self, directory: Path, *, resume: bool, progress: Progress, jobs: int) -> Comparison:
        """Run everything below ``directory`` and write the report."""
        seeds = list(dict.fromkeys(seed for _, seed in self.experiments))
        tasks = [
            _Task(
                self.tree,
                method,
                seed,
                directory / f"{method.rpartition(':')[2]}-seed{seed}",
                method if len(seeds) == 1 else f"{method} seed {seed}",
                resume,
            )
            for method, seed in self.experiments
        ]
        entries = [{"method": t.method, "seed": t.seed, "directory": t.directory.name} for t in tasks]
        methods = list(self.options.methods)
        write_json(
            directory / "comparison.json",
            {"recipe": self.recipe, "methods": methods, "seeds": seeds, "runs": entries},
        )
        finished = _in_processes(tasks, jobs, progress) if jobs > 1 else [task.run(progress) for task in tasks]
        runs: dict[str, list[Run]] = {method: [] for method in methods}
        for task, run in zip(tasks, finished, strict=True):
            runs[task.method].append(run)
        result = Comparison(directory, runs)
        write_report([directory], result.report)
        return result


@dataclass(frozen=True)
class _Task:
    """One run of a comparison, in plain values that can be sent to another process."""

    tree: Tree
    method: str
    seed: int
    directory: Path
    label: str
    resume: bool

    def run(self, progress: Progress | None = None) -> Run:
        experiment = resolve(self.tree, method=self.method, seed=self.seed)
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
