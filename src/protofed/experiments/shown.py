"""Runs and comparisons as one line, and as a table with a small plot for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from protofed.runs import main_rule
from protofed.text import percent, size

WIDTH, HEIGHT = 240, 60
_TABLE = '<table style="text-align:right"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'


def run_line(directory: Path, summary: Mapping[str, Any]) -> str:
    """Return a run in one line.

    Args:
        summary: The contents of ``summary.json``.
    """
    rule = _rule(summary)
    where = f"in {directory}"
    if rule is None:
        return f"<Run {summary['method']} on {summary['recipe']}, {summary['rounds']} rounds, {where}>"
    final, best = (percent(summary["accuracy"][rule][figure]) for figure in ("final", "best"))
    return (
        f"<Run {summary['method']} on {summary['recipe']}: {final} by {rule} after {summary['rounds']} rounds "
        f"(best {best}), {where}>"
    )


def comparison_line(directory: Path, runs: Mapping[str, Sequence[Any]]) -> str:
    """Return a comparison in one line.

    Args:
        runs: Runs by label.
    """
    number = sum(len(group) for group in runs.values())
    return f"<Comparison of {', '.join(runs)}: {number} runs in {directory}>"


def run_html(directory: Path, summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> str:
    """Return a run as a table of its rules and a plot of its accuracy.

    Args:
        summary: The contents of ``summary.json``.
        rounds: The lines of ``rounds.jsonl``.
    """
    sent = sum(summary["communication"][f"bytes_{way}_total"] for way in ("up", "down"))
    names = f"<b>{escape(summary['method'])}</b> on {escape(summary['recipe'])}"
    title = f"{names}, {summary['rounds']} rounds, {size(sent)}"
    rows = [(rule, part["final"], part["best"]) for rule, part in summary["accuracy"].items()]
    table = _table(("rule", "final", "best"), [(rule, percent(final), percent(best)) for rule, final, best in rows])
    rule = _rule(summary)
    plot = _plot([curve(rounds, rule)]) if rule else ""
    return f"<div>{title}<br>{table}{plot}<br><code>{escape(str(directory))}</code></div>"


def comparison_html(directory: Path, runs: Mapping[str, Sequence[Any]]) -> str:
    """Return a comparison as a table of its methods, means over seeds by their main rules, with a plot.

    Args:
        runs: Runs by label.
    """
    rows, curves = [], []
    for label, group in runs.items():
        rule = _rule(group[0].summary)
        parts = [run.summary["accuracy"][rule] for run in group] if rule else []
        means = [
            percent(sum(p[figure] for p in parts) / len(parts)) if parts else "" for figure in ("final", "best")
        ]
        rows.append((label, rule or "", *means))
        curves.append(curve(group[0].rounds, rule) if rule else [])
    table = _table(("method", "rule", "final", "best"), rows)
    return f"<div>{table}{_plot(curves)}<br><code>{escape(str(directory))}</code></div>"


def curve(rounds: Sequence[Mapping[str, Any]], rule: str) -> list[tuple[int, float]]:
    """Return round and accuracy of the evaluated rounds.

    Args:
        rounds: The lines of ``rounds.jsonl``.
    """
    scored = [(r["round"], r.get("accuracy") or {}) for r in rounds]
    return [(round, accuracy[rule]["weighted"]) for round, accuracy in scored if rule in accuracy]


def _rule(summary: Mapping[str, Any]) -> str | None:
    """Return the rule of the headline numbers; None if the run was never evaluated."""
    rules = summary["accuracy"]
    return main_rule(rules, summary.get("main_rule", "")) if rules else None


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = ["".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows]
    return _TABLE.format(
        head="".join(f"<th>{name}</th>" for name in head), rows="".join(f"<tr>{row}</tr>" for row in cells)
    )


def _plot(curves: Sequence[Sequence[tuple[int, float]]]) -> str:
    """Return curves of accuracy from 0 to 1 as an SVG drawing without texts."""
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
