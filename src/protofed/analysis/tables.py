"""The tables of the command line."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from protofed.analysis.exchange import EXCHANGES
from protofed.analysis.grid import SERIOUS, Axes, Row
from protofed.formats import mean_std, size
from protofed.runs import WAYS, Summary

if TYPE_CHECKING:
    from protofed.experiments import Run


def results_table(runs: Mapping[str, Sequence[Run]]) -> Table:
    """Return one row per method: accuracy by rule, traffic and time, mean ± std over its runs.

    Methods stand together by what they exchange.
    """
    groups = {
        name: [Summary.from_dict(run.summary, f"{run.directory / 'summary.json'}") for run in group]
        for name, group in runs.items()
    }
    summaries = dict(sorted(groups.items(), key=lambda item: _place(_exchanges(item[1]))))
    sections = len({_exchanges(group) for group in summaries.values()}) > 1
    rules = _rules(summaries)
    rounds = max(s.outcome.rounds for group in summaries.values() for s in group)
    seeds = max(len(group) for group in summaries.values())
    over = f", mean ± std over {seeds} seeds" if seeds > 1 else ""
    explained = {
        "head": "head = own classifier",
        "global_model": "model = the server's model",
        "local": "local = nearest own prototype",
        "global": "global = nearest global prototype",
        "global_own": "own = the same among the client's own classes",
        "etf": "etf = the fixed classifier",
        "beacon": "beacon = the shared tiny network with the client's prior",
        "all_classes": "all = own classifier and the shared network, on all classes",
    }
    legend = "; ".join(explained[rule] for rule in rules if rule in explained)
    table = Table(
        title=f"Test accuracy in %, {rounds} rounds{over}",
        caption=f"{legend}. Weighted by test samples; best is chosen on test data, hence optimistic.",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE,
        padding=0,
        show_edge=False,
    )
    table.add_column("method", no_wrap=True)
    table.add_column("round", no_wrap=True, min_width=5)
    short = {"global_own": "own", "global_model": "model", "all_classes": "all"}
    # On a narrow screen names may lose their ends, but numbers of one run must not.
    widths = {"up": 7, "down": 7, "time": 4}
    for heading in (*(short.get(rule, rule) for rule in rules), *widths):
        table.add_column(heading, justify="right", no_wrap=True, min_width=widths.get(heading, 4))
    last = ""
    for name, group in summaries.items():
        if sections and (what := _exchanges(group)) != last:
            table.add_section()
            table.add_row(f"[dim]{what}[/]")
            last = what
        traffic = [size(statistics.fmean(s.outcome.communication.bytes_total[way] for s in group)) for way in WAYS]
        seconds = f"{statistics.fmean(s.outcome.seconds['total'] for s in group):.0f} s"
        table.add_row(name, "final", *(_accuracy(group, rule, "final") for rule in rules), *traffic, seconds)
        table.add_row("", "best", *(_accuracy(group, rule, "best") for rule in rules))
    return table


def grid_table(rows: Sequence[Row], axes: Axes) -> Table:
    """Return a comparison along axes: one column per value of the first, losses of more than 3 points in red.

    Args:
        rows: See :func:`protofed.analysis.grid.rows_of`.
        axes: Names of the values along each axis.
    """
    columns, *others = axes
    table = Table(
        title="Final test accuracy in %: main rule / head; honest clients only where others attack",
        caption="Red: more than 3 points less than the first row of the method has in the first column.",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE,
        padding=0,
        show_edge=False,
    )
    for name in ("method", *others):
        table.add_column(name, no_wrap=True)
    for name in axes[columns]:
        table.add_column(name, justify="right", min_width=7)
    last = ""
    for row in rows:
        if last and row.method != last:
            table.add_section()
        cells = [row.cells.get(name) for name in axes[columns]]
        shown = [("[red]{}[/]" if c.worst > SERIOUS else "{}").format(c.text) if c else "–" for c in cells]
        table.add_row("" if row.method == last else row.method, *row.values, *shown)
        last = row.method
    return table


def _exchanges(group: Sequence[Summary]) -> str:
    return group[0].exchanges


def _place(exchanges: str) -> int:
    return EXCHANGES.index(exchanges) if exchanges in EXCHANGES else len(EXCHANGES)


def _rules(summaries: Mapping[str, Sequence[Summary]]) -> list[str]:
    """Return the rules of all methods in order of first appearance."""
    return list(dict.fromkeys(r for group in summaries.values() for s in group for r in s.outcome.accuracy))


def _accuracy(group: Sequence[Summary], rule: str, figure: str) -> str:
    """Return a percentage, or a dash where the method has no such rule."""
    values = [getattr(s.outcome.accuracy[rule], figure) for s in group if rule in s.outcome.accuracy]
    return mean_std(values).replace("%", "").replace(" ± ", "±")
