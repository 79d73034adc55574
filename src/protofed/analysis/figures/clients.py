"""Figures of the clients: their samples and their accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from protofed.analysis.figures.base import (
    WIDTH,
    Series,
    apply_theme,
    canvas,
    colour_bar,
    counting_axis,
    figure,
    legend_below,
    map_axes,
    name_ticks,
    percent_axis,
    series,
)
from protofed.analysis.style import INK, rule_colours
from protofed.errors import DataError
from protofed.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_MARKS = 1000
"""Marks of a kind that are drawn as shapes; more become an image, or they would make the file heavy."""


@figure("split")
def split(runs: list[Run]) -> Figure:
    """Training samples of every client and class, as the first run has them."""
    first, counts = runs[0], [c.train for c in runs[0].clients]
    kinds = [[c.architecture for c in run.clients] for run in runs]
    alike = kinds[0] if all(each == kinds[0] for each in kinds) else None
    return draw_split(counts, first.names, first.class_names, alike, unit="training samples")


@apply_theme
def draw_split(
    counts: Any,
    client_names: Sequence[str],
    class_names: Sequence[str],
    architectures: Sequence[str] | None = None,
    *,
    unit: str = "samples",
) -> Figure:
    """Return a client × class heat map.

    Args:
        counts: ``(M, K)``: a tensor, an array or lists.
        architectures: ``M`` labels for the right-hand side.
    """
    import numpy as np
    from matplotlib.colors import PowerNorm

    table = np.asarray(counts)
    M, K = len(client_names), len(class_names)
    if table.shape != (M, K) or not table.size:
        raise DataError(f"counts have shape {table.shape}, but there are {M} clients and {K} classes")
    # A model with its options has a long name: an inch for every 16 letters.
    side = min(32, max(map(len, architectures), default=0)) / 16 if architectures else 0.0
    width = float(np.clip(1.9 + side + 0.4 * K, WIDTH, 9.0))
    fig, ax = canvas(width, float(np.clip(1.2 + 0.24 * M, 2.4, 11.0)))
    # Counts under a skewed split span orders of magnitude: a square root keeps the small ones visible.
    norm = PowerNorm(0.5, vmin=0, vmax=max(1, int(table.max())))
    # Many cells become an image: as shapes they would make the file heavy.
    many = table.size > 4000
    mesh = ax.pcolormesh(
        table, cmap="Blues", norm=norm, edgecolors="white", linewidth=0.15 if many else 0.8, rasterized=many
    )
    if K <= 20 and M <= 44:
        for (i, j), count in np.ndenumerate(table):
            if count:
                ink = "white" if norm(count) > 0.6 else INK
                ax.text(j + 0.5, i + 0.5, f"{count}", ha="center", va="center", fontsize=6.5, color=ink)
    name_ticks(ax, "x", class_names, 30, 0.5)
    name_ticks(ax, "y", client_names, 44, 0.5)
    if architectures is not None:
        right = ax.secondary_yaxis("right")
        name_ticks(right, "y", architectures, 44, 0.5, letters=32)
        right.tick_params(length=0, labelcolor="#5B6570", labelsize=7.5)
        right.spines[:].set_visible(False)
    ax.invert_yaxis()
    map_axes(ax, "Class", "Client")
    colour_bar(fig, mesh, ax, unit.capitalize(), aspect=30, shrink=min(1.0, 16 / M))
    return fig


@figure("client_accuracy")
def client_accuracy(runs: list[Run], rule: str | None = None) -> Figure:
    """Final test accuracy of every client from worst to best: one run by all its rules, or methods by one each.

    Options:
        rule: inference rule; by default each method's main rule
    """
    fig, ax = canvas()
    scored = series(runs, rule)
    shown = _one_run(ax, scored[0].runs[0], scored[0].rule) if len(runs) == 1 else _ranks(ax, scored)
    if not shown:
        raise DataError("no accuracy per client to show: no client has test samples")
    percent_axis(ax, shown, "Final test accuracy (%)")
    legend_below(fig, [ax])
    return fig


def _one_run(ax: Axes, run: Run, main: str) -> list[float]:
    """Draw every rule's accuracies over the clients, sorted by the main one; return them."""
    accuracies = {rule: run.client_accuracies(rule) for rule in run.rules}
    tested = [i for i, a in enumerate(accuracies[main]) if a is not None]
    order = sorted(tested, key=lambda i: accuracies[main][i] or 0.0)
    few = len(order) <= 40
    colours = rule_colours(map(run.rule, run.rules))
    shown: list[float] = []
    for rule, values in accuracies.items():
        percents = [100 * (values[i] or 0.0) for i in order]
        look: dict[str, Any] = {"markersize": 6.5} if rule == main else {"markersize": 5, "alpha": 0.75}
        look["markersize"] *= 1.0 if few else 0.5
        ax.plot(
            range(1, len(order) + 1),
            percents,
            "o",
            color=colours[rule],
            label=run.rule(rule).title,
            zorder=2 + (rule == main),
            rasterized=len(order) > MOST_MARKS,
            **look,
        )
        shown += percents
    if few:
        name_ticks(ax, "x", [run.clients[i].name for i in order], 40, 1.0)
        ax.set_xlabel("Client, worst to best")
    else:
        counting_axis(ax, "Rank of the client, worst to best")
    return shown


def _ranks(ax: Axes, scored: Sequence[Series]) -> list[float]:
    """Draw the mean over seeds of the worst, second worst, … client; return the values drawn."""
    import numpy as np

    shown: list[float] = []
    for s in scored:
        rows = [[100 * a for a in run.client_accuracies(s.rule) if a is not None] for run in s.runs]
        # Splits differ between seeds, and so may the number of clients that have test samples.
        common = min(map(len, rows))
        if not common:
            continue
        ranked = np.mean([np.quantile(row, np.linspace(0, 1, common)) for row in rows], axis=0)
        ax.plot(range(1, common + 1), ranked, label=s.label, **s.style.line() | {"linewidth": 0.8})
        shown += ranked.tolist()
    counting_axis(ax, "Rank of the client, worst to best")
    return shown
