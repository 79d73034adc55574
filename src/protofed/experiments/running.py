"""Running experiments: one method, or several on the same federation."""

from __future__ import annotations

import multiprocessing
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import protofed
from protofed.analysis.summary import summarise
from protofed.errors import ConfigError
from protofed.experiments.assemble import assemble, describe_clients, device_of
from protofed.experiments.config import (
    Experiment,
    Tree,
    apply_overrides,
    comparison,
    load_recipe,
    resolve,
)
from protofed.experiments.memory import PeakMemory
from protofed.experiments.rundir import RunDirectory, existing_paths, free_path
from protofed.federation import Federation
from protofed.federation.files import write_json

Overrides = Mapping[str, Any]
DEFAULT_RECIPE = "quickstart"


class Progress:
    """What a run tells while it goes on; the default is silent."""

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        """A run of ``rounds`` rounds begins, or goes on after ``done`` of them."""

    def round(self, label: str, record: Mapping[str, Any]) -> None:
        """A round is over; ``record`` is its line of ``rounds.jsonl``."""

    def finished(self, label: str, run: Run) -> None:
        """A run is complete."""


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        directory: Where its files are.
        summary: The contents of ``summary.json``.
        rounds: The lines of ``rounds.jsonl``.
    """

    directory: Path
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.directory / "report.html"


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


def run(
    recipe: str | Path = DEFAULT_RECIPE,
    overrides: Overrides | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Run | Comparison:
    """Run a recipe.

    Args:
        recipe: A built-in name (``protofed list recipes``) or a TOML file.
        overrides: Dotted names to values, e.g. ``{"method.name": "fedtgp", "rounds": 40}``.
        out: Run directory; by default ``runs/RECIPE-METHOD``, numbered where taken.
        resume: Continue what is there.
        progress: Is told what happens.

    Returns:
        A :class:`Comparison` if the recipe lists methods to compare and neither it nor ``overrides`` names one
        method, otherwise a :class:`Run`.

    Raises:
        ProtofedError: For anything wrong with the recipe, the data or the directory.
    """
    tree = apply_overrides(load_recipe(recipe), overrides or {})
    if "name" not in tree.get("method", {}) and comparison(tree).methods:
        return _compare(tree, out, resume, progress or Progress())
    experiment = resolve(tree)
    method = experiment.method.rpartition(":")[2]
    directory = _directory(out, f"{experiment.recipe}-{method}", resume, experiment)
    return run_experiment(experiment, directory, resume=resume, progress=progress)


def compare(
    recipe: str | Path,
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    overrides: Overrides | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    jobs: int = 1,
) -> Comparison:
    """Run several methods on the same federation, with the same seeds.

    Args:
        recipe: A built-in name or a TOML file.
        methods: Names; by default those the recipe compares.
        seeds: Each method runs once per seed, which decides the split, the initial weights and the order of
            samples; by default the recipe's.
        overrides: As for :func:`run`; ``methods.NAME.OPTION`` sets an option of one method.
        out: Directory; by default ``runs/RECIPE``, numbered where taken.
        resume: Continue what is there.
        progress: Is told what happens; with several jobs, of ends only.
        jobs: Runs at a time, each in a process of its own with its share of the cores. Results equal those of
            one job up to the rounding that another number of threads brings.

    Raises:
        ProtofedError: As :func:`run`; everything is checked before the first run starts.
    """
    tree = apply_overrides(load_recipe(recipe), overrides or {})
    chosen: Tree = {"methods": list(methods)} if methods else {}
    chosen |= {"seeds": list(seeds)} if seeds else {}
    tree = apply_overrides(tree, {f"compare.{name}": value for name, value in chosen.items()})
    return _compare(tree, out, resume, progress or Progress(), jobs)


def _compare(tree: Tree, out: str | Path | None, resume: bool, progress: Progress, jobs: int = 1) -> Comparison:
    options = comparison(tree)
    if not options.methods:
        raise ConfigError("nothing to compare: name methods with --methods a,b,c")
    if len(set(options.methods)) < len(options.methods) or len(set(options.seeds)) < len(options.seeds):
        raise ConfigError("compare.methods and compare.seeds must not repeat a name")
    seeds = options.seeds or (resolve(tree, method=options.methods[0]).seed,)
    planned = [(m, s, resolve(tree, method=m, seed=s)) for m in options.methods for s in seeds]
    for _, _, experiment in planned:
        assemble(experiment)  # so that what is wrong with the last method is told before the first one runs
    directory = _directory(out, planned[0][2].recipe, resume, None)
    entries = [{"method": m, "seed": s, "directory": f"{m.rpartition(':')[2]}-seed{s}"} for m, s, _ in planned]
    write_json(
        directory / "comparison.json",
        {"recipe": planned[0][2].recipe, "methods": list(options.methods), "seeds": list(seeds), "runs": entries},
    )
    tasks = [
        _Task(tree, m, s, directory / str(entry["directory"]), m if len(seeds) == 1 else f"{m} seed {s}", resume)
        for (m, s, _), entry in zip(planned, entries, strict=True)
    ]
    finished = _in_processes(tasks, jobs, progress) if jobs > 1 else [task.run(progress) for task in tasks]
    runs = {
        m: [run for run, task in zip(finished, tasks, strict=True) if task.method == m] for m in options.methods
    }
    result = Comparison(directory, runs)
    _write_report([directory], result.report)
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
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, torch.set_num_threads, (threads,)) as pool:
        waiting = {pool.submit(task.run): task for task in tasks}
        try:
            for future in as_completed(waiting):
                progress.finished(waiting[future].label, future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        return [future.result() for future in waiting]


def run_experiment(
    experiment: Experiment,
    directory: Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    label: str = "",
    report: bool = True,
) -> Run:
    """Run one experiment in ``directory``, or return it if it is there already and ``resume`` is set."""
    progress = progress or Progress()
    label = label or experiment.method
    files = RunDirectory(directory)
    federation: Federation | None = None
    if not files.finished:
        memory = PeakMemory(device_of(experiment))
        federation, federated = assemble(experiment)
        files.open(experiment, resume=resume)
        files.write_federation(describe_clients(federation, federated))
        rounds = files.restore(federation)
        progress.started(label, experiment.rounds, federation.round, directory)
        for record in federation.run():
            rounds.append(files.add_round(record, federation, experiment.checkpoint.every))
            progress.round(label, rounds[-1])
        files.finish(federation, _summary(experiment, rounds, len(federation.names), memory.bytes()))
    else:
        files.open(experiment, resume=resume)
    result = Run(directory, files.summary(), files.rounds())
    if report:
        _write_report([directory], result.report)
    progress.finished(label, result)
    return result


def _summary(experiment: Experiment, rounds: Sequence[dict[str, Any]], clients: int, memory: int) -> dict[str, Any]:
    device = device_of(experiment)
    return {
        "protofed": protofed.__version__,
        "recipe": experiment.recipe,
        "method": experiment.method,
        "seed": experiment.seed,
        "clients": clients,
        **summarise(rounds),
        "peak_memory_bytes": memory,
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "processor": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
        },
    }


def _write_report(directories: Sequence[Path], out: Path) -> None:
    from protofed.analysis.report import write_report  # matplotlib only when a report is due

    write_report(list(directories), out)


def _directory(out: str | Path | None, name: str, resume: bool, experiment: Experiment | None) -> Path:
    """Return the directory asked for, the newest one that can be resumed, or a free one."""
    if out is not None:
        return Path(out)
    base = Path("runs") / name
    if resume:
        for path in existing_paths(base):
            if experiment is None or _resumable(path, experiment):
                return path
    return free_path(base)


def _resumable(path: Path, experiment: Experiment) -> bool:
    try:
        RunDirectory(path).open(experiment, resume=True)
    except ConfigError:
        return False
    return True


def _std(values: Sequence[float]) -> float:
    """Return the sample standard deviation, 0 for a single value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0
