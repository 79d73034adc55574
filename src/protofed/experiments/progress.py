"""Progress of runs: bars in a terminal, lines in a file, JSON for programs, and one line in notebooks."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console
from rich.markup import escape as plain
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from protofed.errors import ConfigError, printable, unknown_name
from protofed.experiments.running import Progress
from protofed.runs.files import read_config
from protofed.runs.records import RoundRecord
from protofed.runs.rules import main_rule
from protofed.runs.run import Run, read_rule
from protofed.runs.trouble import trouble
from protofed.text import duration, few, percent, size

FORMATS = ("auto", "text", "json")
NAMED = 4  #: Most results that one line names, the latest first


class Shown(Progress):
    """Base of displays, which knows the state of every run.

    Attributes:
        scores: Last accuracy of each run, and its rule.
        all: Number of runs of which one line tells; 0 if each has its own.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self.file = file
        self.rounds: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self.scores: dict[str, tuple[str, float]] = {}
        self.wanted: dict[str, str] = {}
        self.all = self.jobs = self.ended = 0
        self.found: list[str] = []
        self._begun = time.monotonic()
        self._seconds: dict[str, list[float]] = {}
        self._warned: set[str] = set()

    def planned(self, runs: int, jobs: int = 1) -> None:
        """Note how many runs follow."""
        self.all, self.jobs, self._begun = runs if runs > 1 else 0, jobs, time.monotonic()

    def advanced(self) -> None:
        """Note the end of one of several runs."""
        self.ended += 1

    def finished(self, label: str, run: Run) -> None:
        """Note how a run ended."""
        accuracy = run.outcome.accuracy.get(run.main_rule)
        if accuracy is not None and accuracy.final is not None:
            self.found.append(f"{label} {percent(accuracy.final)}")
        self.done.pop(label, None)
        self.advanced()

    def describe(self) -> str:
        """Return the state of several runs, the time left, and the results in one line."""
        parts = sum(self.done[label] / max(1, self.rounds[label]) for label in self.done)
        share = (self.ended + parts) / self.all
        left = (time.monotonic() - self._begun) * (1 / share - 1) if share else None
        line = f"{self.ended} of {self.all}" + (f", {self.jobs} at a time" if self.jobs > 1 else "")
        line += f", about {duration(left) if left > 60 else f'{left:.0f} s'} left" if left else ""
        line += f"; now {', '.join(self.done)}" if self.done else ""
        return line + (f"; found: {few(self.found[::-1], NAMED)}" if self.found else "")

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        """Note the start of a run."""
        self.rounds[label], self.done[label] = rounds, done
        self._seconds[label] = []
        self.wanted[label] = read_rule(read_config(directory / "config.toml"))

    def round(self, label: str, record: RoundRecord) -> None:
        """Note the end of a round."""
        self.done[label] = record.round
        self._seconds[label].append(record.seconds["total"])
        if record.accuracy:
            rule = main_rule(record.accuracy.weighted, self.wanted[label])
            self.scores[label] = rule, record.accuracy.weighted[rule]

    def left(self, label: str) -> float:
        """Return the seconds that a run will still take, at the mean pace of its last ten rounds."""
        last = self._seconds[label][-10:]
        return sum(last) / max(1, len(last)) * (self.rounds[label] - self.done[label])

    def warning(self, label: str, record: RoundRecord) -> str:
        """Return a sentence about the first round of a run that is in trouble; "" for all others."""
        found = trouble(record)
        if not found or label in self._warned:
            return ""
        self._warned.add(label)
        return f"{label}, round {record.round}: {found}"


class BarProgress(Shown):
    """Progress display with a bar, which shows the accuracy and traffic of the last round.

    Where several runs are planned, one bar counts them.
    """

    def __init__(self, bars: Bars) -> None:
        super().__init__()
        self.bars = bars
        self.tasks: dict[str, TaskID] = {}
        self.notes: dict[str, str] = {}

    def planned(self, runs: int, jobs: int = 1) -> None:
        """Show one bar for all runs."""
        super().planned(runs, jobs)
        if self.all:
            self.tasks[""] = self.bars.add_task("runs", total=runs, note="")

    def advanced(self) -> None:
        """Advance the bar of all runs."""
        super().advanced()
        self._count()

    def _count(self) -> None:
        if self.all:
            self.bars.update(self.tasks[""], completed=self.ended, note=plain(self.describe()))

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        """Add a bar for a run."""
        super().started(label, rounds, done, directory)
        if self.all:
            self._count()
            return
        self.tasks[label] = self.bars.add_task(label, total=rounds, completed=done, note=f"in {directory}")
        self.notes[label] = "not evaluated"

    def round(self, label: str, record: RoundRecord) -> None:
        """Advance the bar of a run."""
        super().round(label, record)
        if self.all:
            self._count()
        else:
            if label in self.scores:
                rule, accuracy = self.scores[label]
                self.notes[label] = f"{rule} {percent(accuracy)}"
            note = f"{self.notes[label]}, {size(record.sent)} per round"
            self.bars.update(self.tasks[label], advance=1, note=note)
        if warning := self.warning(label, record):
            self.bars.console.print(f"[bold red]{plain(warning)}[/]", highlight=False, soft_wrap=True)

    def finished(self, label: str, run: Run) -> None:
        """Show a full bar, also for a run that stopped early, ran in another process or already existed."""
        super().finished(label, run)
        if self.all:
            return
        if label not in self.tasks:
            self.started(label, run.last_round, run.last_round, run.directory)
        self.bars.update(self.tasks[label], total=run.last_round)


class LineProgress(Shown):
    """Progress as lines for files and pipes: one per round, or one per finished run of several."""

    def __init__(self, file: TextIO | None = None, *, rounds: bool = True) -> None:
        super().__init__(file)
        self.each = rounds

    def planned(self, runs: int, jobs: int = 1) -> None:
        """Count several runs, unless each round has a line."""
        if not self.each:
            super().planned(runs, jobs)

    def advanced(self) -> None:
        """Write how far several runs are."""
        super().advanced()
        if self.all:
            self.write(self.describe())

    def write(self, line: str) -> None:
        """Write a line at once."""
        print(printable(line), file=self.file or sys.stdout, flush=True)

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        """Write where a run begins."""
        super().started(label, rounds, done, directory)
        if not self.all:
            self.write(f"{label}: rounds {done + 1} to {rounds} in {directory}")

    def round(self, label: str, record: RoundRecord) -> None:
        """Write a line about a round: accuracy, loss, bytes, and the time left."""
        super().round(label, record)
        if warning := self.warning(label, record):
            self.write(f"warning: {warning}")
        if self.all:
            return
        rule, accuracy = self.scores.get(label, ("not evaluated", None))
        loss = record.losses.get("total")
        parts = [rule if accuracy is None else f"{rule} {percent(accuracy)}"]
        parts += [f"loss {'not finite' if loss is None else f'{loss:.4g}'}"] if record.losses else []
        parts += [size(record.sent), f"{duration(self.left(label))} left"]
        self.write(f"{label} round {record.round}/{self.rounds[label]}: {', '.join(parts)}")

    def finished(self, label: str, run: Run) -> None:
        """Write how a run ended that already existed."""
        super().finished(label, run)
        if not self.all and label not in self.rounds:
            self.write(f"{label}: finished after {run.last_round} rounds in {run.directory}")


class JsonProgress(Shown):
    """Progress as one JSON object per line, written at once."""

    def write(self, event: str, label: str, **values: Any) -> None:
        """Write an event."""
        line = json.dumps({"event": event, "run": label, **values}, ensure_ascii=False, allow_nan=False)
        print(line, file=self.file or sys.stdout, flush=True)

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        """Write the start of a run."""
        super().started(label, rounds, done, directory)
        self.write("started", label, rounds=rounds, done=done, directory=str(directory))

    def round(self, label: str, record: RoundRecord) -> None:
        """Write the end of a round."""
        super().round(label, record)
        rule, accuracy = self.scores.get(label, (None, None))
        self.write(
            "round",
            label,
            round=record.round,
            rounds=self.rounds[label],
            rule=rule,
            accuracy=accuracy,
            evaluated=record.accuracy is not None,
            losses=record.losses,
            bytes=record.bytes,
            seconds=record.seconds["total"],
            seconds_left=self.left(label),
            refused=len(record.refused),
            missing=len(record.missing),
        )
        if warning := self.warning(label, record):
            self.write("warning", label, round=record.round, text=warning)

    def finished(self, label: str, run: Run) -> None:
        """Write the end of a run."""
        accuracy = {rule: outcome.final for rule, outcome in run.outcome.accuracy.items()}
        self.write("finished", label, rounds=run.last_round, accuracy=accuracy, directory=str(run.directory))


class NotebookProgress(LineProgress):
    """The last line of progress, and all warnings, below the cell of a notebook that runs."""

    def __init__(self, display: Any, html: Any) -> None:
        super().__init__(rounds=False)
        self.display, self.html = display, html
        self.warnings: list[str] = []
        self._handle: Any = None

    def write(self, line: str) -> None:
        """Show a line in place of the one before it."""
        if line.startswith("warning: "):
            self.warnings.append(line)
        shown = self.html("".join(f"<div>{escape(text)}</div>" for text in dict.fromkeys([*self.warnings, line])))
        if self._handle is None:
            self._handle = self.display(shown, display_id=True)
        else:
            self._handle.update(shown)


class KeptRuns(Progress):
    """Receiver that remembers the runs on disk, for the message after an interruption."""

    def __init__(self) -> None:
        self.running: dict[str, tuple[Path, int, int]] = {}
        self.ended = 0

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        """Remember where a run is."""
        self.running[label] = directory, done, rounds

    def round(self, label: str, record: RoundRecord) -> None:
        """Remember how far a run has come."""
        directory, _, rounds = self.running[label]
        self.running[label] = directory, record.round, rounds

    def finished(self, label: str, run: Run) -> None:
        """Forget a run that needs no more."""
        self.running.pop(label, None)
        self.ended += 1

    def describe(self) -> str:
        """Describe the files of the stopped runs."""
        stopped = "; ".join(
            f"{label} stopped after round {done} of {rounds}: {directory} holds {self._state(directory)}"
            for label, (directory, done, rounds) in self.running.items()
        )
        if stopped or not self.ended:
            return stopped or "stopped before the first round: nothing was kept"
        return "stopped between two runs: what had finished is kept"

    @staticmethod
    def _state(directory: Path) -> str:
        found = [int(path.name.removeprefix("round-")) for path in (directory / "checkpoint").glob("round-*")]
        return f"a checkpoint of round {max(found)}" if found else "no checkpoint yet"


def in_notebook() -> Progress | None:
    """Return a display if this process is the kernel of a notebook, else None."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or "ZMQ" not in type(shell).__name__:
        return None
    from IPython.display import HTML, display

    return NotebookProgress(display, HTML)


@contextmanager
def progress_bar(console: Console, *, quiet: bool, log_format: str = "auto") -> Iterator[Progress]:
    """Yield a progress display: bars in a terminal; elsewhere one line per round, or per run of several.

    Args:
        log_format: ``auto``; ``text`` for lines everywhere, ``json`` for one JSON object per line.
    """
    if log_format not in FORMATS:
        raise ConfigError(unknown_name("--log-format", log_format, FORMATS))
    if quiet:
        yield Progress()
        return
    if log_format == "json":
        yield JsonProgress()
        return
    if log_format == "text" or not console.is_terminal:
        yield LineProgress(rounds=log_format == "text")
        return
    columns = (
        TextColumn("{task.description:<9}"),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[note]}[/]"),
    )
    with Bars(*columns, console=console) as bars:
        yield BarProgress(bars)
