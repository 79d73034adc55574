"""Benchmark of executors beside other work: seconds per round while processes of others compete for the cores."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from rich.table import Table

from benchmarks.cases import case_experiment
from benchmarks.ours import Rounds
from benchmarks.request import Note, Request, Result, new_table
from protofed.compute import numerics
from protofed.compute.numerics import cores
from protofed.config.schema import Experiment
from protofed.experiments.hardware import Hardware
from protofed.visits.workers import stay_with_parent

CASE = "fedproto-cnn2"
SHORT = {"GOMP_SPINCOUNT": "20000"}
"""Threads that wait look for work less often than GNU's OpenMP lets them by default, and then sleep."""
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Threads that wait sleep at once."""


class Setting(NamedTuple):
    """An executor, the threads of each process, and variables that say how threads wait for each other."""

    executor: Literal["sequential", "workers"]
    threads: int
    environment: Mapping[str, str] = {}

    @property
    def waiting(self) -> str:
        """The environment, as text."""
        return " ".join(f"{name}={value}" for name, value in self.environment.items())


def settings() -> list[Setting]:
    """Return the ways to compute: the executors of a CPU, and ways to wait where threads wait for each other."""
    alone = [Setting("sequential", 1), Setting("workers", 1)]
    if cores() == 1:
        return alone
    return [*(Setting("sequential", cores(), waiting) for waiting in ({}, SHORT, PASSIVE)), *alone]


def check_busy(request: Request) -> None:
    """Raise ProtofedError unless there are such cases."""
    for name in request.cases or (CASE,):
        case_experiment(name, request.overrides, rounds=request.rounds + 1)


def busy(request: Request, note: Note) -> Iterator[Result]:
    """Measure every way to compute, without and with competing processes."""
    figures = []
    for name in request.cases or (CASE,):
        experiment = case_experiment(name, request.overrides, rounds=request.rounds + 1)
        for setting in settings():
            seconds = {}
            for load in dict.fromkeys((0, *request.loads)):
                note(f"{name}: {setting.executor}, {setting.threads} threads {setting.waiting}, beside {load}")
                with competing(load):
                    seconds[load] = measured(experiment, setting)
            figures.append({"case": name, **setting._asdict(), "seconds": seconds})
            yield Result(_table(figures, request), figures)


def measured(experiment: Experiment, setting: Setting) -> list[float]:
    """Return the seconds of each round but the first, in a new process: OpenMP reads its settings only once."""
    execution = replace(experiment.execution, executor=setting.executor, threads=setting.threads)
    before = dict(os.environ)
    for name in (*numerics.WAITING, "OMP_NUM_THREADS"):
        os.environ.pop(name, None)
    os.environ.update(setting.environment)
    try:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), stay_with_parent) as pool:
            return pool.submit(_seconds, replace(experiment, execution=execution)).result()
    finally:
        os.environ.clear()
        os.environ.update(before)


def _seconds(experiment: Experiment) -> list[float]:
    with closing(Rounds(experiment, Hardware.of(experiment.execution))) as rounds:
        return [rounds.run().seconds["total"] for _ in range(experiment.rounds)][1:]


@contextmanager
def competing(number: int) -> Iterator[None]:
    """Keep ``number`` processes busy that have nothing to do with ours."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def _table(figures: Sequence[Mapping[str, Any]], request: Request) -> Table:
    table = new_table(
        f"Beside other work: seconds per round, median of {request.rounds}",
        "Ratios are to the same setting beside nothing.",
    )
    for heading in ("case", "executor", "threads", "waiting"):
        table.add_column(heading, justify="right" if heading == "threads" else "left")
    loads = list(figures[0]["seconds"])
    for load in loads:
        table.add_column(f"beside {load}", justify="right")
        if load:
            table.add_column("ratio", justify="right")
    for row in figures:
        medians = {load: statistics.median(row["seconds"][load]) for load in loads}
        cells = []
        for load in loads:
            cells.append(f"{medians[load]:.3g}")
            if load:
                cells.append(f"{medians[load] / medians[0]:.2f}")
        waiting = " ".join(f"{name}={value}" for name, value in row["environment"].items())
        threads = str(row["threads"])
        table.add_row(row["case"], row["executor"], threads, waiting or "default", *cells)
    return table
