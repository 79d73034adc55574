"""Parts shared by commands: consoles, options of the command line, and the end of a run that is stopped."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.text import Text
from typer.core import TyperGroup

from protofed.errors import ConfigError, printable, unknown_name

if TYPE_CHECKING:
    from protofed.experiments import Progress


class _Console(Console):
    """A console on which names from elsewhere are text and nothing else."""

    def render_str(self, text: str, *arguments: Any, **options: Any) -> Text:
        """Return a text whose control characters are escaped."""
        return super().render_str("\n".join(map(printable, text.split("\n"))), *arguments, **options)


console = _Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 120)
errors = _Console(stderr=True)


ELSEWHERE = {
    "figure": "is gone: protofed report RUN --figure NAME draws one",
    "sweep": "is gone: protofed compare takes several values of an option, e.g. method.s=50,150",
    "worth": "is gone: protofed try FOLDER or RECIPE has what it told",
    "example": "is gone: write the data as step 1 of docs/deployment.md does",
    "roster": "is gone: deploy approve signs the roster of the sites whose requests it is given",
    "warm": "is gone: protofed deploy node does what it did, for every node",
    "reproduce": "is of protofed-papers: in a checkout, uv run protofed reproduce",
    **dict.fromkeys(("deploy", "ledger"), "needs protofed-flower: pip install protofed-flower"),
    **dict.fromkeys(("audit", "demo", "ui"), "needs protofed-lab: pip install protofed-lab"),
}
"""Commands that earlier versions had, or distributions have that are not installed."""


class Commands(TyperGroup):
    """A group of commands that says of one that it does not have what there is instead."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Raise ConfigError if there is no such command."""
        if cmd_name not in self.commands:
            known = cmd_name in ELSEWHERE and f"command {cmd_name!r} {ELSEWHERE[cmd_name]}"
            raise ConfigError(known or unknown_name("command", cmd_name, self.commands))
        return super().get_command(ctx, cmd_name)


Device = Annotated[str, typer.Option(help="auto, cpu, cuda, one GPU such as cuda:1, or mps.")]
DataDir = Annotated[
    Path | None, typer.Option(help="Folder with local copies of data sets (default: PROTOFED_DATA).")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print only the table.")]
Seeds = Annotated[str, typer.Option(help="Seeds, separated by commas, e.g. 0,1,2.")]
Jobs = Annotated[int, typer.Option(min=1, help="Number of simultaneous runs, which share the cores.")]
Budget = Annotated[str, typer.Option(help="Wall-clock budget, e.g. 2h or 90m; repeat the command to continue.")]
Directory = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a finished run.")]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Import code that the run's configuration names for models or methods.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME=VALUE]...", help="Options by dotted name, e.g. method.lambda=10 rounds=40."),
]

signals: list[int] = []  #: Signals that asked this command to stop: SIGINT (Ctrl-C) or SIGTERM


def overrides_of(items: list[str], device: str, data_dir: Path | None) -> dict[str, Any]:
    """Return the options set on the command line, by dotted name."""
    from protofed.config.schema import parse_overrides

    found = parse_overrides(items)
    if device != "auto":
        found["execution.device"] = device
    if data_dir is not None:
        if not data_dir.is_dir():
            raise ConfigError(f"--data-dir {data_dir}: no such folder")
        found["data.data_dir"] = str(data_dir)
    return found


def names_of(text: str) -> list[str]:
    """Return the names in a text that separates them by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def integers_of(text: str, option: str = "--seeds") -> list[int]:
    """Return the integers in the text of an option, which separates them by commas."""
    if wrong := next((name for name in names_of(text) if not re.fullmatch(r"[+-]?\d{1,20}", name)), ""):
        raise ConfigError(f"{option}: {wrong[:30]!r} is not an integer of at most 20 digits")
    return [int(name) for name in names_of(text)]


@contextmanager
def report_progress(
    *, quiet: bool, log_format: str = "auto", full: bool = False, resume: bool = True
) -> Iterator[Progress]:
    """Yield a receiver of progress reports, for all rounds if ``full``; say how a stopped run is continued."""
    from protofed.experiments.progress import KeptRuns, progress_bar
    from protofed.experiments.running import Progress

    class Obedient(Progress):
        def _pass_on(self, report: str, *about: object) -> None:
            if signals:  # Python drops an exception that a signal raises in a destructor
                raise KeyboardInterrupt
            super()._pass_on(report, *about)

    kept, log_format = KeptRuns(), "text" if full and log_format == "auto" else log_format
    try:
        with progress_bar(console, quiet=quiet, log_format=log_format) as shown:
            yield Obedient.share(kept, shown)
    except BaseException:
        # A signal inside a C library may surface as one of the library's own exceptions.
        if not signals:
            raise
        goes_on = "; repeat the command" + (" with --resume" if resume else "") + " to continue"
        if kept.running and resume:
            place = next(iter(kept.running.values()))[0]
            place = place.parent if (place.parent / "comparison.json").is_file() else place
            goes_on += "" if "--out" in sys.argv else (f", and --out {place}" if len(kept.running) == 1 else "")
        errors.print(escape(kept.describe()) + escape(goes_on), highlight=False, soft_wrap=True)
        raise KeyboardInterrupt from None
