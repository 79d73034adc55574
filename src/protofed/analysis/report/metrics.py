"""The tables of metrics, where runs have some."""

from __future__ import annotations

from collections.abc import Sequence

from protofed.analysis.metrics import overall_text, spread_text, writer
from protofed.analysis.report import facts
from protofed.analysis.table import TextCell, TextTable
from protofed.runs.metrics import HEADLINES, SampleMetrics
from protofed.runs.run import Run, by_label
from protofed.text import number

BY_CLASS = {
    "recall": "Recall (sensitivity)",
    "specificity": "Specificity",
    "precision": "Precision",
    "f1": "F1",
    "auroc": "AUROC",
}
SHOWN = {"accuracy": "Accuracy", **HEADLINES}


def methods(runs: Sequence[Run]) -> TextTable | None:
    """Return one row per method that has metrics, mean ± std over its runs; None if no run has any."""
    table = TextTable(["Method", *SHOWN.values()])
    for label, group in by_label(run for run in runs if run.measured).items():
        found = [run.measured for run in group if run.measured]
        rule = group[0].rule(found[0].rule)
        cells = (TextCell(overall_text(found, name), spread_text(found, name)) for name in SHOWN)
        table.add(TextCell(label, rule.title.lower()), *cells)
    return table if table.rows else None


def overall(run: Run) -> TextTable | None:
    """Return the metrics of all test samples, and their means over clients; None if the run has none."""
    if run.measured is None:
        return None
    of, table = run.measured.overall, TextTable(["", *SHOWN.values()])
    table.add("All test samples", *(TextCell(writer(n)(getattr(of, n)), _why(of, n)) for n in SHOWN))
    cells = []
    for name in SHOWN:
        over = run.measured.over_clients(name)
        cells.append(
            TextCell(spread_text([run.measured], name), f"of {facts.plural(over[2], 'client')}" if over else "")
        )
    table.add(TextCell("Mean over clients", "± standard deviation"), *cells)
    return table


def _why(metrics: SampleMetrics, name: str) -> str:
    return (metrics.undefined or {}).get(name, "")


def by_class(run: Run) -> TextTable | None:
    """Return the metrics of each class against all others, over all test samples; None if the run has none."""
    if run.measured is None:
        return None
    table = TextTable(["Class", "Test samples", *BY_CLASS.values()])
    for each in run.measured.overall.classes:
        values = (writer(name)(getattr(each, name)) for name in BY_CLASS)
        table.add(run.class_names[each.label], number(each.samples), *values)
    return table
