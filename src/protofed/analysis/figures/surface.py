"""How accuracy depends on two options at once."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from protofed.analysis.figures.base import colour_bar, figure, map_axes, name_ticks, panels, write_title
from protofed.analysis.style import INK
from protofed.errors import ConfigError, DataError, unknown_name
from protofed.runs.labels import flat
from protofed.runs.run import Run, select_finished

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@figure("surface")
def surface(runs: list[Run], x: str = "", y: str = "", rule: str | None = None) -> Figure:
    """Final test accuracy against two options, one panel per method; mean over seeds.

    Options:
        x: dotted name of the option along the horizontal axis
        y: dotted name of the option along the vertical axis
        rule: inference rule; by default each method's main rule
    """
    if not (x and y):
        raise ConfigError("surface needs two options: --option x=NAME --option y=NAME, such as x=training.lr")
    scored = [run for run in select_finished(runs) if run.evaluations and (rule is None or rule in run.rules)]
    options = [flat(run.config) for run in scored]
    for name in (x, y):
        if not any(name in own for own in options):
            raise DataError(unknown_name("option of these runs", name, {n for own in options for n in own}))
    cells: dict[str, dict[tuple[Any, Any], list[float]]] = {}
    for run, own in zip(scored, options, strict=True):
        if x in own and y in own:
            outcome = run.outcome.accuracy[rule or run.main_rule]
            cells.setdefault(run.arm, {}).setdefault((own[x], own[y]), []).append(100 * outcome.final)
    if not cells:
        raise DataError(f"nothing to show: no method has both {x} and {y}")
    across = _order_values([place[0] for own in cells.values() for place in own])
    up = _order_values([place[1] for own in cells.values() for place in own])
    means = {m: {place: statistics.fmean(v) for place, v in own.items()} for m, own in cells.items()}
    shown = [value for own in means.values() for value in own.values()]
    fig, axes = panels(len(means), max(3.4, 1.4 + 0.62 * len(across)), max(2.4, 1.2 + 0.42 * len(up)))
    low, high = min(shown), max(max(shown), min(shown) + 1.0)
    for ax, (method, values) in zip(axes, means.items(), strict=True):
        table = [[values.get((a, b), float("nan")) for a in across] for b in up]
        mesh = ax.pcolormesh(table, cmap="Blues", edgecolors="white", linewidth=0.8, vmin=low, vmax=high)
        for (a, b), value in values.items():
            ink = "white" if value - low > 0.6 * (high - low) else INK
            place = across.index(a) + 0.5, up.index(b) + 0.5
            ax.text(*place, f"{value:.1f}", ha="center", va="center", fontsize=7.5, color=ink)
        name_ticks(ax, "x", [f"{value}" for value in across], 12, 0.5)
        name_ticks(ax, "y", [f"{value}" for value in up], 12, 0.5)
        map_axes(ax, x, y)
        write_title(ax, method)
    colour_bar(fig, mesh, axes, "Final test accuracy (%)")
    return fig


def _order_values(values: list[Any]) -> list[Any]:
    """Return different values in order: numbers by size, others as they come."""
    different = list(dict.fromkeys(values))
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in different)
    return sorted(different) if numbers else different
