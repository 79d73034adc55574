"""The tables of metrics, where runs have some."""

from __future__ import annotations

import math
from collections.abc import Sequence

from protofed.analysis.metrics import area, overall_text, spread_text, writer
from protofed.analysis.table import TextCell, TextTable
from protofed.runs.metrics import HEADLINES, SampleMetrics
from protofed.runs.run import Run, by_label
from protofed.text import mean_std, number, plural
from protofed.trained.paired import Sampled, same_tests, two_level

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


def two_classes(runs: Sequence[Run]) -> TextTable | None:
    """Return what a test of two classes is judged by, one row per method; None without metrics, or of more classes.

    Sensitivity is that of the class with fewer test samples. AUROC has its 95 % interval over seeds and test
    samples, by Hanley and McNeil (1982).
    """
    groups = by_label(run for run in runs if run.measured)
    if not groups or any(len(run.class_names) != 2 for run in runs):
        return None
    tested = [0, 0]
    for run in runs:
        for c in run.measured.overall.classes if run.measured else ():
            tested[c.label] += c.samples
    rare, names = int(tested[1] <= tested[0]), runs[0].class_names
    head = f"Sensitivity ({names[rare]})", f"Specificity ({names[1 - rare]})"
    table = TextTable(["Method", *head, "AUROC", "Calibration error"])
    for label, group in groups.items():
        found = [run.measured.overall for run in group if run.measured]
        recalls = [[c.recall for m in found for c in m.classes if c.label == k] for k in (rare, 1 - rare)]
        areas = [Sampled(m.auroc, _variance(m)) for m in found if m.auroc is not None]
        mean = two_level(areas, same=same_tests(group)) if areas else None
        known = mean and math.isfinite(mean.half)
        ends = f"{max(0.0, mean.low):.3f} … {min(1.0, mean.high):.3f}" if mean and known else ""
        table.add(
            TextCell(label, group[0].rule(group[0].main_rule).title.lower()),
            *map(mean_std, recalls),
            TextCell(area(mean and mean.mean), ends),
            mean_std([m.calibration_error for m in found]),
        )
    return table


def _variance(metrics: SampleMetrics) -> float:
    """Return the variance of the area of two classes over test samples.

    Hanley and McNeil's formula depends on which class has the more even scores; the larger value is taken. One more
    pair of samples, half of it in order, leaves some doubt where all are.
    """
    counts = [c.samples for c in metrics.classes if c.samples]
    if len(counts) != 2:
        return math.inf
    m, n = counts
    a = ((metrics.auroc or 0.0) * m * n + 0.5) / (m * n + 1)
    q1, q2 = a / (2 - a) - a**2, 2 * a**2 / (1 + a) - a**2
    most = max((m - 1) * q1 + (n - 1) * q2, (n - 1) * q1 + (m - 1) * q2)
    return (a * (1 - a) + most) / (m * n)


def overall(run: Run) -> TextTable | None:
    """Return the metrics of all test samples, and their means over clients; None if the run has none."""
    if run.measured is None:
        return None
    of, table = run.measured.overall, TextTable(["", *SHOWN.values()])
    why = of.undefined or {}
    table.add("All test samples", *(TextCell(writer(n)(getattr(of, n)), why.get(n, "")) for n in SHOWN))
    cells = []
    for name in SHOWN:
        over = run.measured.over_clients(name)
        cells.append(TextCell(spread_text([run.measured], name), f"of {plural(over[2], 'client')}" if over else ""))
    table.add(TextCell("Mean over clients", "± standard deviation"), *cells)
    return table


def by_class(run: Run) -> TextTable | None:
    """Return the metrics of each class against all others, over all test samples; None if the run has none."""
    if run.measured is None:
        return None
    table = TextTable(["Class", "Test samples", *BY_CLASS.values()])
    for each in run.measured.overall.classes:
        values = (writer(name)(getattr(each, name)) for name in BY_CLASS)
        table.add(run.class_names[each.label], number(each.samples), *values)
    return table
