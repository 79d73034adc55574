"""The tables that set methods side by side."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from protofed.analysis.differing import models, remarks
from protofed.analysis.exchange import by_exchange
from protofed.analysis.report.facts import architectures, bytes_per_round, parameters
from protofed.analysis.report.tables import Cell, Table, accuracies
from protofed.analysis.style import method_styles, rule_title
from protofed.formats import duration, mean_std, size
from protofed.runs import RULE_ORDER, RunData, by_label, main_rule, settled

__all__ = ["methods", "remarks", "rules"]


def methods(runs: Sequence[RunData]) -> Table:
    """Return one row per method by its main rule: accuracy, traffic, time; mean ± std over seeds.

    Methods stand together by what they exchange.
    """
    table = Table(
        ["Method", "Runs", "Final", "Best", "Mean over clients", "Up / round", "Down / round", "In total", "Time"]
    )
    table.groups = [("", 2), ("Test accuracy by the main rule", 3), ("Bytes sent", 3), ("", 1)]
    styles = method_styles(run.label for run in runs)
    differ = bool(models(runs))
    for label, group in _sections(table, runs):
        chosen = settled(group)
        rule = main_rule(r for run in chosen for r in run.rules)
        finished = sum(run.finished for run in group)
        waiting = "" if finished == len(group) else f"{len(group) - finished} unfinished"
        # Methods that average weights need one architecture, where the others may have a mixture.
        note = rule_title(rule).lower() + (
            f"; {architectures(chosen[0])}, {parameters(chosen[0])}" if differ else ""
        )
        table.add(
            Cell(label, note, style=styles[label]),
            Cell(str(len(chosen)), waiting),
            *(mean_std(accuracies(chosen, rule, name)) for name in ("final", "best", "client_mean")),
            *(size(statistics.fmean(bytes_per_round(run, way) for run in chosen)) for way in ("up", "down")),
            size(statistics.fmean(run.outcome.communication.sent for run in chosen)),
            duration(statistics.fmean(run.outcome.seconds["total"] for run in chosen)),
        )
    _emphasise(table, range(2, 5))
    return table


def rules(runs: Sequence[RunData]) -> Table:
    """Return one row per method: final and best accuracy by every rule, mean ± std over seeds."""
    scored = {rule for run in runs for rule in run.rules}
    names = [r for r in RULE_ORDER if r in scored] + sorted(scored - set(RULE_ORDER))
    table = Table(["Method", *(name for _ in names for name in ("Final", "Best"))])
    table.groups = [("", 1), *((rule_title(rule), 2) for rule in names)]
    styles = method_styles(run.label for run in runs)
    for label, group in _sections(table, runs):
        chosen = settled(group)
        cells = [mean_std(accuracies(chosen, rule, name)) for rule in names for name in ("final", "best")]
        table.add(Cell(label, style=styles[label]), *cells)
    _emphasise(table, range(1, len(table.head)))
    return table


def _sections(table: Table, runs: Sequence[RunData]) -> Iterator[tuple[str, list[RunData]]]:
    """Yield labels and their runs by what their methods exchange; head each such section of the table."""
    groups = by_exchange(runs)
    for what, members in groups.items():
        if len(groups) > 1:
            table.sections[len(table.rows)] = f"Exchange {what}" if what else "Exchange not known"
        yield from by_label(members).items()


def _emphasise(table: Table, columns: range) -> None:
    """Mark the highest value of each column, as papers do; ties are all marked."""

    def value(cell: Cell) -> float:
        digits = cell.text.split(" ")[0].rstrip("%")
        return float(digits) if digits != "–" else -1.0

    for column in columns:
        values = [value(row[column]) for row in table.rows]
        if sum(v >= 0 for v in values) > 1:
            for row, own in zip(table.rows, values, strict=True):
                row[column] = row[column]._replace(strong=own == max(values))
