"""Comparisons along axes as a table of any two of the options that vary; seeds are averaged."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from protofed.analysis.table import TextTable
from protofed.errors import ConfigError, unknown_name
from protofed.runs.run import Run
from protofed.trained.paired import Interval, interval

if TYPE_CHECKING:
    from pandas import DataFrame

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

    def table(self) -> TextTable:
        """Return the table of means ± half of their intervals."""
        names, count = [*self.names[:-1], *self.columns], len(self.names) - 1
        title = f"{METRICS[self.metric].capitalize()} in % by the main rule"
        caption = f"Columns: {self.names[-1]}. ±: half of the 95 % t interval over seeds."
        table = TextTable(names, text_columns=count, title=title, caption=caption)
        for row in self.rows:
            found = (self.cells.get((row, column)) for column in self.columns)
            table.add(*row, *("not run" if cell is None else cell.with_half(" ±") for cell in found))
        return table

    def frame(self) -> DataFrame:
        """Return one line per cell: mean, lower and upper end in percent; nothing where there is none."""
        from pandas import DataFrame

        cells = [
            (*row, column, *self.cells.get((row, column), (None,) * 3))
            for row in self.rows
            for column in self.columns
        ]
        found = DataFrame(cells, columns=[*self.names, self.metric, "low", "high"])
        return found.replace([math.inf, -math.inf], math.nan)


def pivot(
    runs: Sequence[Run], axes: Mapping[str, Sequence[str]], rows: str = "", columns: str = "", metric: str = "final"
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
