"""Many runs, in turn or in parallel: what is finished is kept, and a budget of time stops them cleanly."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

import protofed
from protofed.compute import numerics
from protofed.config.schema import Experiment, Tree, resolve
from protofed.errors import CheckpointError, ConfigError, ProtofedError
from protofed.experiments import memory
from protofed.experiments.running import Measure, Progress, run_experiment
from protofed.runs.records import RoundRecord
from protofed.runs.run import Run
from protofed.storage.files import check_format, is_occupied, read_json, write_json
from protofed.storage.processes import process_context
from protofed.untrusted import claims
from protofed.visits.workers import end, stay_with_parent

if TYPE_CHECKING:
    from multiprocessing.queues import SimpleQueue

FORMAT = 1  #: Version of the format of a folder of runs that are found by their configuration
MARK = "runs.json"  #: File by which such a folder is known
LONG = 50_000  #: Samples trained on from which processes are started unasked: seconds with the smallest models
LISTEN = 0.2  #: Seconds between looks at what processes report


def folder(experiment: Experiment) -> str:
    """Return the name of a run's folder: method, seed and key."""
    method = re.sub(r"[^\w-]", "-", experiment.method.rpartition(":")[2])[:60]
    return f"{method}-seed{experiment.seed}-{experiment.key}"


def claim(directory: Path) -> None:
    """Make ``directory`` a folder of runs that are found by their configuration, or check that it is one."""
    mark = directory / MARK
    if mark.is_file():
        found = read_json(mark)
        check_format(mark, found.get("format"), FORMAT)
        if found.get("protofed") != protofed.__version__:
            raise CheckpointError(
                f"{directory}: holds runs of protofed {claims.clean(found.get('protofed'), 20)}, and this is "
                f"{protofed.__version__}: continue with that version, or choose another --out"
            )
        return
    if is_occupied(directory):
        raise ConfigError(f"{directory} is not empty and holds no runs of such a command: choose another --out")
    write_json(mark, {"format": FORMAT, "protofed": protofed.__version__})


_UNITS = {"d": 86400, "h": 3600, "m": 60, "min": 60, "s": 1}


def seconds(text: str) -> float | None:
    """Return the seconds of a budget such as ``2h``, ``1h30m`` or ``90s``; None for no limit, as in an empty text.

    Example:
        >>> seconds("1h30m"), seconds("")
        (5400.0, None)
    """
    if not text:
        return None
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*(d|h|min|m|s)", text)
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not total or re.sub(r"\d+(?:\.\d+)?\s*(?:d|h|min|m|s)", "", text).strip():
        raise ConfigError(f"--budget {text!r} must be a time such as 2h, 1h30m or 90s")
    return total


class BudgetSpentError(Exception):
    """The time is up; the run that was going on can be resumed."""


@dataclass(frozen=True)
class RunTask:
    """One run, in plain values that can be sent to another process."""

    tree: Tree
    directory: Path
    label: str
    resume: bool  #: The directory may contain a part of it
    #: Stores metrics, if ``evaluation.metrics`` asks for them; a function of a module
    measure: Measure | None = None

    @property
    def finished(self) -> bool:
        """Return whether the run is complete."""
        return (self.directory / "summary.json").is_file()

    def run(self, progress: Progress | None = None, deadline: float | None = None) -> Run | None:
        """Run it; return None if the time is up before its end."""
        if deadline is not None and time.monotonic() >= deadline and not self.finished:
            return None
        watched = _Watch(progress or Progress(), deadline)
        try:
            return run_experiment(
                resolve(self.tree),
                self.directory,
                resume=self.resume,
                progress=watched,
                label=self.label,
                measure=self.measure,
            )
        except BudgetSpentError:
            return None


class _Watch(Progress):
    """Passes reports on, and ends a run after the round in which the time is up."""

    def __init__(self, to: Progress, deadline: float | None) -> None:
        self.receivers, self.deadline, self.rounds = [to], deadline, 0

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        """Pass the report on."""
        self.rounds = rounds
        super().started(label, rounds, done, directory)

    def round(self, label: str, record: RoundRecord) -> None:
        """Pass the report on; after the last round a run ends of its own accord."""
        super().round(label, record)
        if self.deadline is not None and time.monotonic() >= self.deadline and record.round < self.rounds:
            raise BudgetSpentError


class Runnable(Protocol):
    """Something to run: a :class:`RunTask`, or several that belong together."""

    @property
    def label(self) -> str:
        """Its name in progress reports."""

    def run(self, progress: Progress | None = None, deadline: float | None = None) -> Any:
        """Run it; return None if the time is up before its end."""


def at_once(tasks: int, samples: float = math.inf) -> int:
    """Return how many runs to carry out at a time: where it pays, as many as cores and memory permit.

    Args:
        samples: On which all train together.
    """
    if torch.cuda.is_available() or samples < LONG:
        return 1
    return max(1, min(numerics.cores(), tasks, memory.room()))


Outcome = Any  #: The end of a job: its result, the error with which it failed, or None if the time was up


def run_tasks(
    tasks: Sequence[Runnable],
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    deadline: float | None = None,
    keep_going: bool = False,
) -> Iterator[tuple[int, Outcome]]:
    """Run tasks and yield the place and the outcome of each as it ends.

    Args:
        jobs: Simultaneous runs, each in a process of its own.
        deadline: Of :func:`time.monotonic`; no further round begins after it.
        keep_going: Treat a failure as an outcome like any other.

    Raises:
        ProtofedError: If a run fails and ``keep_going`` is not set, or a process dies.
    """
    progress = progress or Progress()
    if min(jobs, len(tasks)) > 1:
        yield from _in_processes(tasks, jobs, progress, deadline, keep_going)
        return
    for place, task in enumerate(tasks):
        try:
            outcome: Outcome = task.run(progress, deadline)
        except ProtofedError as error:
            if not keep_going:
                raise
            outcome = error
        yield place, outcome


def _in_processes(
    tasks: Sequence[Runnable], jobs: int, progress: Progress, deadline: float | None, keep_going: bool
) -> Iterator[tuple[int, Outcome]]:
    threads, context = max(1, numerics.cores() // jobs), process_context()
    heard = context.SimpleQueue()
    with ProcessPoolExecutor(min(jobs, len(tasks)), context, _begin, (threads, heard)) as pool:
        waiting: dict[Future[Outcome], int] = {
            pool.submit(_run, task, deadline): place for place, task in enumerate(tasks)
        }
        try:
            while waiting:
                ended = wait(waiting, LISTEN, FIRST_COMPLETED).done
                while not heard.empty():
                    report, *about = heard.get()
                    getattr(progress, report)(*about)
                for future in ended:
                    place = waiting.pop(future)
                    error = future.exception()
                    if error is not None and not (keep_going and isinstance(error, ProtofedError)):
                        raise error
                    outcome: Outcome = error if isinstance(error, ProtofedError) else future.result()
                    if isinstance(outcome, Run):
                        progress.finished(tasks[place].label, outcome)
                    yield place, outcome
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


class _Sent(Progress):
    """Sends the reports of a process to the one that waits for it."""

    def __init__(self, to: SimpleQueue[tuple[Any, ...]]) -> None:
        self.to = to

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        """Send the start of a run."""
        self.to.put(("started", label, rounds, done, directory))

    def round(self, label: str, record: RoundRecord) -> None:
        """Send the end of a round."""
        self.to.put(("round", label, record))


_sent: Progress | None = None


def _begin(threads: int, heard: SimpleQueue[tuple[Any, ...]]) -> None:
    global _sent
    _sent = _Sent(heard)
    stay_with_parent()
    torch.set_num_threads(threads)


def _run(task: Runnable, deadline: float | None) -> Outcome:
    return task.run(_sent, deadline)
