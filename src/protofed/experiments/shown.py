"""Runs and comparisons as one line, and as a table with a small plot for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from protofed.runs.run import Run
from protofed.text import percent, size

WIDTH, HEIGHT = 240, 60


def run_line(run: Run) -> str:
    """Return a run in one line."""
    name, where = f"<Run {run.method} on {run.recipe}", f"in {run.directory}>"
    if not run.rules:
        return f"{name}, {run.last_round} rounds, {where}"
    own = run.outcome.accuracy[run.main_rule]
    scores = f"{percent(own.final)} by {run.main_rule} after {run.last_round} rounds (best {percent(own.best)})"
    return f"{name}: {scores}, {where}"


def comparison_line(directory: Path, runs: Mapping[str, Sequence[Run]]) -> str:
    """Return a comparison in one line."""
    number = sum(len(group) for group in runs.values())
    return f"<Comparison of {', '.join(runs)}: {number} runs in {directory}>"


def run_html(run: Run) -> str:
    """Return a run as a sentence, a table of its rules and a plot of its accuracy."""
    from pandas import DataFrame

    names = f"<b>{escape(run.method)}</b> on {escape(run.recipe)}"
    cost = f"{run.last_round} rounds, {size(run.outcome.communication.sent)}"
    title = f"{names}, {cost}"
    if run.rules:
        right = f"{percent(run.outcome.accuracy[run.main_rule].final)} of the clients' own test samples are right"
        title = f"{names}: {right} ({escape(run.main_rule)}), after {cost}"
    rows = [(rule, percent(own.final), percent(own.best)) for rule, own in run.outcome.accuracy.items()]
    table = DataFrame(rows, columns=("rule", "final", "best")).to_html(index=False, border=0)
    plot = curves_html([run])
    return f"<div>{title}<br>{table}{plot}<br><code>{escape(str(run.directory))}</code></div>"


def curves_html(runs: Sequence[Run]) -> str:
    """Return the accuracy of runs over the rounds, by their main rules, as an SVG drawing without texts."""
    curves = [list(run.accuracy(run.main_rule).items()) for run in runs]
    last = max((points[-1][0] for points in curves if points), default=0)
    if last < 2:
        return ""
    colours = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
    lines = "".join(
        f'<polyline fill="none" stroke="{colours[i % len(colours)]}" stroke-width="1.5" points="'
        + " ".join(f"{WIDTH * (r - 1) / (last - 1):.1f},{HEIGHT * (1 - a):.1f}" for r, a in points)
        + '"/>'
        for i, points in enumerate(curves)
        if points
    )
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" viewBox="0 -2 {WIDTH} {HEIGHT + 4}" role="img" '
        f'aria-label="Accuracy over the rounds, from 0 to 100 %">{lines}</svg>'
    )
