"""The tables that set methods side by side."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Sequence

from protofed.analysis.differing import models
from protofed.analysis.exchange import by_exchange
from protofed.analysis.report.facts import architectures, bytes_per_round, parameters
from protofed.analysis.report.tables import CONVERGED, OutcomeColumn, groups_of, outcome_columns
from protofed.analysis.style import method_styles
from protofed.analysis.table import TextCell, TextTable
from protofed.runs.run import Run, by_label, rule_of, rules_of, select_finished
from protofed.text import duration, size


def methods(runs: Sequence[Run]) -> TextTable:
    """Return one row per method by its main rule: accuracy, traffic, time; mean ± std over seeds.

    Methods stand together by what they exchange.
    """
    columns = outcome_columns(runs)
    headings = [column.heading for column in columns]
    table = TextTable(["Method", "Runs", *headings, "Up / round", "Down / round", "In total", "Time"])
    table.groups = [("", 2), *groups_of(columns), ("Bytes sent", 3), ("", 1)]
    styles = method_styles(run.label for run in runs)
    differ = bool(models(runs))
    for label, group in _sections(table, runs):
        chosen = select_finished(group)
        rule = rule_of(chosen)
        finished = sum(run.finished for run in group)
        waiting = "" if finished == len(group) else f"{len(group) - finished} unfinished"
        # Methods that average weights need one architecture, where the others may have a mixture.
        note = chosen[0].rule(rule).title.lower() + (
            f"; {architectures(chosen[0])}, {parameters(chosen[0])}" if differ else ""
        )
        table.add(
            TextCell(label, note, style=styles[label]),
            TextCell(str(len(chosen)), waiting),
            *(column.cell(chosen, rule) for column in columns),
            *(size(statistics.fmean(bytes_per_round(run, way) for run in chosen)) for way in ("up", "down")),
            size(statistics.fmean(run.outcome.communication.sent for run in chosen)),
            duration(statistics.fmean(run.outcome.seconds["total"] for run in chosen)),
        )
    _emphasise(table, [i for i, column in enumerate(columns, start=2) if column.name != CONVERGED])
    return table


def rules(runs: Sequence[Run]) -> TextTable:
    """Return one row per method: final and best accuracy by every rule, mean ± std over seeds."""
    final = OutcomeColumn("", "Final", "final", "client_std", "client_mean")
    best = OutcomeColumn("", "Best", "best", "best_client_std", "best_client_mean")
    return _by_rule(runs, [final, best])


def beyond(runs: Sequence[Run]) -> TextTable | None:
    """Return one row per method: final accuracy on everyone's samples by every rule; None if there is none."""
    scored = any(outcome.union for run in runs for outcome in run.outcome.accuracy.values())
    columns = [OutcomeColumn("", "All classes", "union"), OutcomeColumn("", "Unseen classes", "unseen")]
    return _by_rule(runs, columns) if scored else None


def _by_rule(runs: Sequence[Run], columns: Sequence[OutcomeColumn]) -> TextTable:
    """Return one row per method with the same columns for every rule."""
    rules = rules_of(runs)
    table = TextTable(["Method", *(column.heading for _ in rules for column in columns)])
    table.groups = [("", 1), *((rule.title, len(columns)) for rule in rules.values())]
    styles = method_styles(run.label for run in runs)
    for label, group in _sections(table, runs):
        cells = [column.cell(select_finished(group), rule) for rule in rules for column in columns]
        table.add(TextCell(label, style=styles[label]), *cells)
    _emphasise(table, range(1, len(table.head)))
    return table


def _sections(table: TextTable, runs: Sequence[Run]) -> Iterator[tuple[str, list[Run]]]:
    """Yield labels and their runs, and add a section to the table for each kind of exchange."""
    groups = by_exchange(runs)
    for what, members in groups.items():
        if len(groups) > 1:
            table.sections[len(table.rows)] = f"Exchange {what}" if what else "Exchange not known"
        yield from by_label(members).items()


def _emphasise(table: TextTable, columns: Iterable[int]) -> None:
    """Mark the highest value of each column, as papers do; ties are all marked."""

    def value(cell: TextCell) -> float:
        digits = cell.text.split(" ")[0].rstrip("%")
        return float(digits) if digits != "–" else -1.0

    for column in columns:
        values = [value(row[column]) for row in table.rows]
        if sum(v >= 0 for v in values) > 1 and max(values) > 0:
            for row, own in zip(table.rows, values, strict=True):
                row[column] = row[column]._replace(strong=own == max(values))
