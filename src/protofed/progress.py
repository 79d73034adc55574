"""The live progress bar of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars

from protofed.experiments import Progress, Run
from protofed.formats import percent, size
from protofed.runs import main_rule, read_config, wanted_rule


class BarProgress(Progress):
    """Progress display with one bar per run, which shows the accuracy and traffic of the last round.

    Where many runs are planned, one bar counts them.

    Args:
        bars: The display of the bars.
    """

    def __init__(self, bars: Bars) -> None:
        self.bars = bars
        self.tasks: dict[str, TaskID] = {}
        self.notes: dict[str, str] = {}
        self.wanted: dict[str, str] = {}
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
        if self.all is not None:
            self.bars.update(self.all, note=label)
            return
        self.tasks[label] = self.bars.add_task(label, total=rounds, completed=done, note=f"in {directory}")
        self.notes[label] = "not evaluated"
        self.wanted[label] = wanted_rule(read_config(directory / "config.toml"))

    def round(self, label: str, record: Mapping[str, Any]) -> None:
        """Advance the bar of a run."""
        if self.all is not None:
            self.bars.update(self.all, note=f"{label}, round {record['round']}")
            return
        sent = size(record["bytes"]["up"] + record["bytes"]["down"])
        accuracy = record.get("accuracy")
        if accuracy:
            rule = main_rule(accuracy, self.wanted[label])
            self.notes[label] = f"{rule} {percent(accuracy[rule]['weighted'])}"
        self.bars.update(self.tasks[label], advance=1, note=f"{self.notes[label]}, {sent} per round")

    def finished(self, label: str, run: Run) -> None:
        """Show a full bar for a run that was carried out in another process or already existed."""
        if self.all is not None:
            self.advanced()
        elif label not in self.tasks:
            rounds = run.summary["rounds"]
            self.started(label, rounds, rounds, run.directory)


@contextmanager
def progress_bar(console: Console, *, quiet: bool) -> Iterator[Progress]:
    """Yield a live progress display.

    Args:
        console: Console to draw on.
        quiet: Whether to yield a receiver that shows nothing instead.
    """
    if quiet:
        yield Progress()
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
