"""What a benchmark is asked for and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from protofed.errors import ConfigError

Note = Callable[[str], None]
"""Is told in a few words what is being measured."""


@dataclass(frozen=True)
class Request:
    """What to measure.

    Attributes:
        rounds: Measured rounds of everything; one more comes before them to warm up.
        overrides: Options by dotted name, for every experiment.
        cases: Names in :data:`protofed.benchmark.cases.CASES`; none: those of the benchmark.
        threads: Numbers of threads to try; none: 1 to all cores.
        processes: Of the executor ``workers``; 0: one per core, 1: leave it out.
        peer: A checkout of HtFLlib, or None.
        clients: Sizes of the federations of ``scaling``.
        per_client: Samples of each client of ``scaling``, for training and testing.
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
            raise ConfigError("--clients names no size: give numbers separated by commas, e.g. 20,100")


@dataclass(frozen=True)
class Result:
    """What a benchmark found.

    Attributes:
        table: For people.
        figures: For ``--json``: plain values, seconds unless the name says otherwise.
    """

    table: Table
    figures: list[dict[str, Any]]
