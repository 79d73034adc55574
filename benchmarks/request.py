"""Settings and results of a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from protofed.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Note = Callable[[str], None]  #: Callback for short progress messages


@dataclass(frozen=True)
class Request:
    """Settings of a benchmark."""

    rounds: int = 3  #: Number of measured rounds, which follow one warm-up round
    overrides: Mapping[str, Any] = field(default_factory=dict)  #: Options of every experiment by dotted name
    #: Names in :data:`benchmarks.cases.CASES`; if empty, the default cases of the benchmark
    cases: Sequence[str] = ()
    threads: Sequence[int] = ()  #: Numbers of threads to try; if empty, 1 to all cores
    processes: int = 0  #: Number of processes of the executor ``workers``; 0 for one per core, 1 to leave it out
    peer: Path | None = None  #: A checkout of HtFLlib, or None
    clients: Sequence[int] = (20, 100, 500, 1000)  #: Numbers of clients of the federations of ``scaling``
    per_client: int = 60  #: Number of samples of each client of ``scaling``, training and test samples together
    target: float = 0.93  #: Accuracy of ``until``, a fraction of all test samples
    limit: int = 60  #: Number of rounds after which ``until`` gives up
    seeds: Sequence[int] = (0, 1, 2)  #: Seeds of ``until``

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("processes", 0), ("per_client", 2), ("limit", 1)):
            if getattr(self, name) < least:
                option = name.replace("_", "-")
                raise ConfigError(f"--{option} must be at least {least}, not {getattr(self, name)}")
        for name in ("threads", "clients"):
            if any(value < 1 for value in getattr(self, name)):
                raise ConfigError(
                    f"--{name} must be positive numbers, not {','.join(map(str, getattr(self, name)))}"
                )
        for name, example in (("clients", "20,100"), ("seeds", "0,1,2")):
            if not getattr(self, name):
                raise ConfigError(f"--{name} is empty: give numbers separated by commas, e.g. {example}")
        if not 0 < self.target <= 1:
            raise ConfigError(f"--target must be a fraction of the test samples, e.g. 0.93, not {self.target:g}")


@dataclass(frozen=True)
class Result:
    """The result of a benchmark."""

    table: Table  #: Table for printing
    figures: list[dict[str, Any]]  #: Plain values for ``--json``, in seconds unless the name says otherwise
    draw: Callable[[], Figure] | None = None  #: Draws them for ``--figure``; None if the benchmark has no picture


def new_table(title: str, caption: str, *headings: str) -> Table:
    """Return an empty table with columns for names and then for numbers, or none yet."""
    left: Any = {"title_justify": "left", "caption_justify": "left"}
    table = Table(title=title, caption=caption, box=box.SIMPLE, padding=(0, 1, 0, 0), **left)
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", no_wrap=True)
    return table
