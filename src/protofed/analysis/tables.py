"""The tables of the command line."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

if TYPE_CHECKING:
    from protofed.experiments import Run

RULES = {
    "head": "head",
    "local": "nearest local prototype",
    "global": "nearest global prototype",
    "global_own": "nearest global, own classes",
}


def results_table(runs: Mapping[str, Sequence[Run]]) -> Table:
    """Return one row per method: accuracy by rule, traffic and time, mean ± std over its runs."""
    summaries = {name: [run.summary for run in group] for name, group in runs.items()}
    rules = _rules(summaries)
    rounds = max(s["rounds"] for group in summaries.values() for s in group)
    seeds = max(len(group) for group in summaries.values())
    over = f", mean ± std over {seeds} seeds" if seeds > 1 else ""
    table = Table(
        title=f"Accuracy in % (final / best of {rounds} rounds{over})",
        caption="weighted by test samples; best is chosen on test data",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("method")
    for rule in rules:
        table.add_column(RULES.get(rule, rule), justify="right")
    for heading in ("bytes up", "bytes down", "seconds"):
        table.add_column(heading, justify="right")
    for name, group in summaries.items():
        cells = [_accuracy(group, rule) for rule in rules]
        traffic = [
            size(statistics.fmean(s["communication"][f"bytes_{way}_total"] for s in group))
            for way in ("up", "down")
        ]
        seconds = statistics.fmean(s["seconds"]["total"] for s in group)
        table.add_row(name, *cells, *traffic, f"{seconds:.1f}")
    return table


def size(count: float) -> str:
    """Return a number of bytes in SI units."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def _rules(summaries: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the rules of all methods in order of first appearance."""
    return list(dict.fromkeys(r for group in summaries.values() for s in group for r in s["accuracy"]))


def _accuracy(group: Sequence[Mapping[str, Any]], rule: str) -> str:
    """Return ``final / best`` in percent, or a dash where the method has no such rule."""
    values = [s["accuracy"][rule] for s in group if rule in s["accuracy"]]
    if not values:
        return "–"
    return " / ".join(_mean_std([v[figure] for v in values]) for figure in ("final", "best"))


def _mean_std(values: Sequence[float]) -> str:
    mean = f"{100 * statistics.fmean(values):.1f}"
    return f"{mean} ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else mean
