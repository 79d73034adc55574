"""Progress of runs: bars in a terminal, lines in a file, JSON for programs, and a bar in notebooks."""

from __future__ import annotations

import json
import sys
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
from protofed.text import duration, percent, size

FORMATS = ("auto", "text", "json")


class Shown(Progress):
    """Base of displays, which knows the state of every run.

    Args:
        file: Standard output by default.

    Attributes:
        scores: Last accuracy of each run, and its rule.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self.file = file
        self.rounds: dict[str, int] = {}
        self.done: dict[str, int] = {}
        self.scores: dict[str, tuple[str, float]] = {}
        self.wanted: dict[str, str] = {}
        self._seconds: dict[str, list[float]] = {}
        self._warned: set[str] = set()

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
    """Progress display with one bar per run, which shows the accuracy and traffic of the last round.

    Where many runs are planned, one bar counts them.
    """

    def __init__(self, bars: Bars) -> None:
        super().__init__()
        self.bars = bars
        self.tasks: dict[str, TaskID] = {}
        self.notes: dict[str, str] = {}
        self.all: TaskID | None = None

    def planned(self, runs: int) -> None:
        """Show one bar for all runs."""
        self.all = self.bars.add_task("runs", total=runs, note="")

    def advanced(self) -> None:
        """Advance the bar of all runs."""
        if self.all is not None:
            self.bars.advance(self.all)

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        """Add a bar for a run."""
        super().started(label, rounds, done, directory)
        if self.all is not None:
            self.bars.update(self.all, note=label)
            return
        self.tasks[label] = self.bars.add_task(label, total=rounds, completed=done, note=f"in {directory}")
        self.notes[label] = "not evaluated"

    def round(self, label: str, record: RoundRecord) -> None:
        """Advance the bar of a run."""
        super().round(label, record)
        if self.all is not None:
            self.bars.update(self.all, note=f"{label}, round {record.round}")
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
        if self.all is not None:
            self.advanced()
            return
        if label not in self.tasks:
            self.started(label, run.last_round, run.last_round, run.directory)
        self.bars.update(self.tasks[label], total=run.last_round)


class LineProgress(Shown):
    """Progress as one line per round, written at once, for files and pipes."""

    def write(self, line: str) -> None:
        """Write a line at once."""
        print(printable(line), file=self.file or sys.stdout, flush=True)

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        """Write where a run begins."""
        super().started(label, rounds, done, directory)
        self.write(f"{label}: rounds {done + 1} to {rounds} in {directory}")

    def round(self, label: str, record: RoundRecord) -> None:
        """Write a line about a round: accuracy, loss, bytes, and the time left."""
        super().round(label, record)
        rule, accuracy = self.scores.get(label, ("not evaluated", None))
        loss = record.losses.get("total")
        parts = [rule if accuracy is None else f"{rule} {percent(accuracy)}"]
        parts += [f"loss {'not finite' if loss is None else f'{loss:.4g}'}"] if record.losses else []
        parts += [size(record.sent), f"{duration(self.left(label))} left"]
        self.write(f"{label} round {record.round}/{self.rounds[label]}: {', '.join(parts)}")
        if warning := self.warning(label, record):
            self.write(f"warning: {warning}")

    def finished(self, label: str, run: Run) -> None:
        """Write how a run ended that was carried out in another process or already existed."""
        if label not in self.rounds:
            self.write(f"{label}: finished after {run.last_round} rounds in {run.directory}")


class JsonProgress(Shown):
    """Progress as one JSON object per line, written at once."""

    def write(self, event: str, label: str, **values: Any) -> None:
        """Write an event.

        Args:
            event: ``started``, ``round``, ``warning`` or ``finished``.
        """
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


class NotebookProgress(Shown):
    """Progress as a bar below the cell of a notebook that runs."""

    def __init__(self, display: Any, html: Any) -> None:
        super().__init__()
        self.display, self.html = display, html
        self.warnings: list[str] = []
        self._handle: Any = None

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        """Add a bar for a run."""
        super().started(label, rounds, done, directory)
        self._draw()

    def round(self, label: str, record: RoundRecord) -> None:
        """Advance the bar of a run."""
        super().round(label, record)
        if warning := self.warning(label, record):
            self.warnings.append(warning)
        self._draw()

    def finished(self, label: str, run: Run) -> None:
        """Fill the bar of a run."""
        if label not in self.rounds:
            self.started(label, run.last_round, run.last_round, run.directory)

    def _draw(self) -> None:
        lines = []
        for label, rounds in self.rounds.items():
            rule, accuracy = self.scores.get(label, ("", None))
            note = f"{escape(rule)} {percent(accuracy)}, " if rule else ""
            bar = f'<progress value="{self.done[label]}" max="{rounds}"></progress>'
            left = duration(self.left(label))
            lines.append(f"<div>{escape(label)} {bar} {self.done[label]}/{rounds} {note}{left} left</div>")
        lines += [f'<div style="color:#b00020">{escape(text)}</div>' for text in self.warnings]
        shown = self.html("".join(lines))
        if self._handle is None:
            self._handle = self.display(shown, display_id=True)
        else:
            self._handle.update(shown)


class KeptRuns(Progress):
    """Receiver that remembers what is on disk, for whoever stops a run."""

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
        """Describe what was kept of the stopped runs."""
        stopped = "; ".join(
            f"{label} stopped after round {done} of {rounds}: {directory} holds {self._state(directory)}"
            for label, (directory, done, rounds) in self.running.items()
        )
        if stopped or not self.ended:
            return stopped or "stopped before the first round: nothing was kept"
        return "stopped between two runs: what had finished is kept"

    @staticmethod
    def _state(directory: Path) -> str:
        found = sorted((directory / "checkpoint").glob("round-*"))
        return (
            f"a checkpoint of round {int(found[-1].name.removeprefix('round-'))}" if found else "no checkpoint yet"
        )


def in_notebook() -> Progress | None:
    """Return a display if this process is the kernel of a notebook, else None."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if shell is None or "ZMQ" not in type(shell).__name__:
        return None
    from IPython.display import HTML, display

    return NotebookProgress(display, HTML)


@contextmanager
def progress_bar(console: Console, *, quiet: bool, log_format: str = "auto") -> Iterator[Progress]:
    """Yield a progress display: bars in a terminal, and one line per round elsewhere.

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
        yield LineProgress()
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
