"""Comparisons along axes: one value of the first axis a column, everything else a row.

Where clients attack, accuracies are those of the honest ones, and losses are measured against the same clients in
the first column and with the first value of every other axis.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from protofed.analysis.table import TextCell, TextTable
from protofed.runs.rules import HEAD
from protofed.runs.run import Run
from protofed.trained.paired import interval

if TYPE_CHECKING:
    from pandas import DataFrame

Axes = Mapping[str, Sequence[str]]
SERIOUS = 3.0  #: Points of accuracy that an attack may cost before a table emphasises it


@dataclass
class Figures:
    """Final accuracies of one cell, one number per seed; losses are against the reference of the same seed."""

    main: list[float] = field(default_factory=list)
    #: By the clients' own classifiers; empty if the method has no such rule
    head: list[float] = field(default_factory=list)
    main_loss: list[float] = field(default_factory=list)
    head_loss: list[float] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Mean accuracies in percent: main rule, of several seeds ± half of its 95 % t interval / head."""
        if not self.main:
            return "–"
        own = interval([100 * value for value in self.main]).with_half(" ±")
        return f"{own} / {100 * statistics.fmean(self.head):.1f}" if self.head else own

    @property
    def worst(self) -> float:
        """The larger mean loss of the two, in points."""
        return max((100 * statistics.fmean(part) for part in (self.main_loss, self.head_loss) if part), default=0.0)


@dataclass(frozen=True)
class GridRow:
    """One method with one value of every axis but the first."""

    method: str
    values: tuple[str, ...]
    cells: dict[str, Figures]


def rows_of(runs: Sequence[Run], axes: Axes) -> list[GridRow]:
    """Return the rows of a comparison along axes, in the order in which methods and values are named."""
    first = {axis: values[0] for axis, values in axes.items()}
    by_place = {(run.arm, run.values, run.seed): run for run in runs if run.evaluations}
    rows: dict[tuple[str, tuple[str, ...]], GridRow] = {}
    for (method, values, seed), run in by_place.items():
        row = rows.setdefault((method, values[1:]), GridRow(method, values[1:], {}))
        figures = row.cells.setdefault(values[0], Figures())
        reference = by_place.get((method, tuple(first.values()), seed))
        attack = next(record.attack for record in run.rounds if record.round == run.last_evaluation)
        attacking = set(attack.clients) if attack else set()
        main = run.main_rule
        for rule, values_of, losses in (
            (main, figures.main, figures.main_loss),
            (HEAD.name, figures.head, figures.head_loss),
        ):
            if rule in run.rules and (rule != main or values_of is figures.main):
                own = _accuracy(run, rule, attacking)
                values_of.append(own)
                if reference is not None:
                    losses.append(_accuracy(reference, rule, attacking) - own)
    order = [list(values) for values in list(axes.values())[1:]]
    methods = list(dict.fromkeys(row.method for row in rows.values()))

    def place(row: GridRow) -> list[int]:
        return [methods.index(row.method), *(names.index(v) for names, v in zip(order, row.values, strict=True))]

    return sorted(rows.values(), key=place)


def _accuracy(run: Run, rule: str, without: set[str]) -> float:
    """Return the final accuracy over the test samples of all clients but those in ``without``."""
    scored = zip(run.clients, run.client_accuracies(rule), strict=True)
    kept = [(a, sum(c.test)) for c, a in scored if a is not None and c.name not in without]
    total = sum(size for _, size in kept)
    return sum(accuracy * size for accuracy, size in kept) / total if total else 0.0


def table(rows: Sequence[GridRow], axes: Axes) -> TextTable:
    """Return one column per value of the first axis, with losses of more than 3 points emphasised."""
    columns, *others = axes
    found = TextTable([*(others or [""]), *axes[columns]], text_columns=max(1, len(others)), by="method")
    found.title = "Final test accuracy in %: main rule / head; honest clients only where others attack"
    found.caption = f"Columns: {columns}. Red: more than 3 points below the first value of the method."
    method = ""
    for row in rows:
        if row.method != method:
            method = found.sections[len(found.rows)] = row.method
        found.add(*(row.values or ("",)), *(_cell(row.cells.get(name)) for name in axes[columns]))
    return found


def _cell(figures: Figures | None) -> TextCell:
    if figures is None:
        return TextCell("–")
    loss = f"{-figures.worst:+.1f}" if figures.main_loss else ""
    loss = "0.0" if loss and float(loss) == 0 else loss.replace("-", "−")
    return TextCell(figures.text, loss, figures.worst > SERIOUS)


def frame(rows: Sequence[GridRow], axes: Axes) -> DataFrame:
    """Return one line per cell: accuracies and losses in percent, mean and sample standard deviation over seeds."""
    from pandas import DataFrame

    first, *others = axes
    return DataFrame(
        {
            "method": row.method,
            **dict(zip(others, row.values, strict=True)),
            first: column,
            "seeds": len(cell.main),
            **{f"{what}_{how}": n for what, part in vars(cell).items() for how, n in _summary(part).items()},
        }
        for row in rows
        for column, cell in row.cells.items()
    )


def _summary(values: Sequence[float]) -> dict[str, float | None]:
    percents = [100 * value for value in values]
    spread = statistics.stdev(percents) if len(percents) > 1 else 0.0
    return {"mean": statistics.fmean(percents), "std": spread} if percents else {"mean": None, "std": None}
