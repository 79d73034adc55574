"""Comparisons along axes as a table of any two of the options that vary; seeds are averaged."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from protofed.analysis.paired import Interval, interval
from protofed.errors import ConfigError, unknown_name
from protofed.runs.run import Run

METRICS = {
    "final": "final test accuracy",
    "best": "test accuracy in the round that is best on test data",
    "best_validated": "test accuracy in the round that is best on validation data",
    "client_mean": "final test accuracy, mean over clients",
}
"""Contents of a cell, by attribute of :class:`~protofed.runs.summary.RuleOutcome`."""


@dataclass(frozen=True)
class Pivot:
    """A table of accuracies in percent.

    Attributes:
        names: Options of the row's values, then that of the columns.
        cells: Mean and 95 % interval over seeds; absent where not run.
    """

    names: list[str]
    rows: list[tuple[str, ...]]
    columns: list[str]
    cells: dict[tuple[tuple[str, ...], str], Interval]
    metric: str

    def text(self, row: tuple[str, ...], column: str) -> str:
        """Return a cell: mean ± half of the interval; "not run" where there is none."""
        cell = self.cells.get((row, column))
        return "not run" if cell is None else written(cell)

    def as_csv(self) -> str:
        """Return one line per cell: mean, lower and upper end in percent."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self.names, self.metric, "low", "high"])
        for row, column in product(self.rows, self.columns):
            cell = self.cells.get((row, column))
            numbers = ["not run", "", ""] if cell is None else [_plain(number) for number in cell]
            writer.writerow([*row, column, *numbers])
        return text.getvalue()


def written(cell: Interval) -> str:
    """Return a mean with half of its interval, which one value does not have.

    Example:
        >>> written(Interval(90.0, 89.0, 91.0)), written(Interval(90.0, float("-inf"), float("inf")))
        ('90.0 ±1.0', '90.0')
    """
    return f"{cell.mean:.1f}" + (f" ±{cell.high - cell.mean:.1f}" if math.isfinite(cell.high) else "")


def pivot(
    runs: Sequence[Run],
    axes: Mapping[str, Sequence[str]],
    rows: str = "",
    columns: str = "",
    metric: str = "final",
) -> Pivot:
    """Return a comparison along axes as a table.

    Options that are neither rows nor columns stand in further columns on the left, so that no run is hidden.

    Args:
        rows: ``method`` by default, or an axis.
        columns: ``method`` or an axis; by default the last axis.
    """
    if metric not in METRICS:
        raise ConfigError(unknown_name("metric", metric, METRICS))
    arms = list(dict.fromkeys(run.arm for run in runs))
    values: dict[str, Sequence[str]] = {"method": arms, **axes}
    for name in (rows, columns):
        if name and name not in values:
            raise ConfigError(unknown_name("option of this sweep", name, values))
    columns = columns or next((name for name in reversed(values) if name != rows), "method")
    rows = rows or next((name for name in values if name != columns), "method")
    if rows == columns and len(values) > 1:
        raise ConfigError(f"rows and columns are both {rows}: name two options")
    names = list(dict.fromkeys([rows, *(name for name in values if name != columns)]))
    found: dict[tuple[tuple[str, ...], str], dict[int, float]] = {}
    for run in runs:
        own = {"method": run.arm, **dict(zip(axes, run.values, strict=True))}
        value = getattr(run.outcome.accuracy[run.main_rule], metric) if run.finished and run.rules else None
        if value is not None:
            found.setdefault((tuple(own[name] for name in names), own[columns]), {})[run.seed] = 100 * value
    cells = {place: interval(list(by_seed.values())) for place, by_seed in found.items()}
    combinations = list(product(*(values[name] for name in names)))
    return Pivot([*names, columns], combinations, list(values[columns]), cells, metric)


def _plain(number: float) -> str:
    return f"{number:.3f}" if math.isfinite(number) else ""
