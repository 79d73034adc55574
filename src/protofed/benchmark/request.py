"""Settings and results of a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from protofed.errors import ConfigError

Note = Callable[[str], None]
"""Callback for short progress messages."""


@dataclass(frozen=True)
class Request:
    """Settings of a benchmark.

    Attributes:
        rounds: Number of measured rounds, which follow one warm-up round.
        overrides: Options of every experiment by dotted name.
        cases: Names in :data:`protofed.benchmark.cases.CASES`; if empty, the default cases of the benchmark.
        threads: Numbers of threads to try; if empty, 1 to all cores.
        processes: Number of processes of the executor ``workers``; 0 for one per core, 1 to leave it out.
        peer: A checkout of HtFLlib, or None.
        clients: Numbers of clients of the federations of ``scaling``.
        per_client: Number of samples of each client of ``scaling``, training and test samples together.
    """

    rounds: int = 3
    overrides: Mapping[str, Any] = field(default_factory=dict)
    cases: Sequence[str] = ()
    threads: Sequence[int] = ()
    processes: int = 0
    peer: Path | None = None
    clients: Sequence[int] = (20, 100, 500, 1000)
    per_client: int = 60

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("processes", 0), ("per_client", 2)):
            if getattr(self, name) < least:
                option = name.replace("_", "-")
                raise ConfigError(f"--{option} must be at least {least}, not {getattr(self, name)}")
        for name in ("threads", "clients"):
            if any(value < 1 for value in getattr(self, name)):
                raise ConfigError(
                    f"--{name} must be positive numbers, not {','.join(map(str, getattr(self, name)))}"
                )
        if not self.clients:
            raise ConfigError("--clients is empty: give numbers separated by commas, e.g. 20,100")


@dataclass(frozen=True)
class Result:
    """The result of a benchmark.

    Attributes:
        table: Table for printing.
        figures: Plain values for ``--json``, in seconds unless the name says otherwise.
    """

    table: Table
    figures: list[dict[str, Any]]
