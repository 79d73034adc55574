"""ProtoNorm Figure 5: how its server spreads the prototypes."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

from protofed.analysis.figures.base import apply_theme, counting_axis, legend_below, panels
from protofed.analysis.figures.lines import band, read_numbers
from protofed.analysis.style import INK, method_styles
from protofed.errors import DataError
from protofed.runs.run import Run, by_label, select_finished

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@apply_theme
def alignment(runs: list[Run]) -> Figure:
    """Prototype alignment: iterations in each round, and how distances between classes grow in the first one."""
    styles = method_styles(run.label for run in runs)
    groups = {label: select_finished(group) for label, group in by_label(runs).items()}
    counts = {
        label: [c for run in group if (c := read_numbers(run, "diagnostics", "alignment_iterations"))]
        for label, group in groups.items()
    }
    counts = {label: curves for label, curves in counts.items() if curves}
    if not counts:
        raise DataError("no alignment to show: only ProtoNorm aligns prototypes, and no round of it is on record")
    firsts = {label: run for label, group in groups.items() for run in reversed(group) if _distances(run)}
    fig, axes = panels(2 if firsts else 1, 4.4, 3.3)
    for label, curves in counts.items():
        band(axes[0], curves, styles[label].line(), label)
    axes[0].set_ylim(bottom=0)
    axes[0].set_ylabel("Alignment iterations")
    counting_axis(axes[0])
    if firsts:
        for label, run in firsts.items():
            _spread(axes[1], run, styles[label].line(), label)
        _bounds(axes[1], sorted({_count_aligned(run) for run in firsts.values()} - {0, 1}))
    legend_below(fig, axes)
    return fig


def _distances(run: Run) -> list[list[float]]:
    """Return smallest, mean and largest distance of each iteration in the first round that has them."""
    return next((d for r in run.rounds if (d := _triples(r.diagnostics.get("alignment_distances")))), [])


def _triples(given: Any) -> list[list[float]]:
    """Return a file's entry as rows of three numbers; ``[]`` if it is anything else."""
    rows = given if isinstance(given, list) else []
    sound = all(isinstance(row, list) and [type(x) in (int, float) for x in row] == [True] * 3 for row in rows)
    return rows if sound else []


def _count_aligned(run: Run) -> int:
    """Return the number of classes aligned in that round."""
    record = next(r for r in run.rounds if _triples(r.diagnostics.get("alignment_distances")))
    given = record.diagnostics.get("classes")
    return given if type(given) is int and given > 0 else len(run.class_names)


def _spread(ax: Axes, run: Run, line: dict[str, Any], label: str) -> None:
    """Draw the mean as a line, and smallest and largest as the edges of a band."""
    low, mean, high = zip(*_distances(run), strict=True)
    steps = range(len(mean))
    ax.plot(steps, mean, label=label, markevery=max(1, len(mean) // 10), **line)
    ax.fill_between(steps, low, high, color=line["color"], alpha=0.13, linewidth=0)
    for edge in (low, high):
        ax.plot(steps, edge, color=line["color"], linewidth=0.8)


def _bounds(ax: Axes, classes: list[int]) -> None:
    """Draw the upper bound of the mean distance of K unit vectors, that of a regular simplex (d ≥ K−1)."""
    for K, dashes in zip(classes, itertools.cycle(((4, 2), (1.2, 1.4), (6, 1.6, 1.2, 1.6)))):
        height = math.sqrt(2 * K / (K - 1))
        label = f"simplex of K={K} classes, √(2K/(K−1)) = {height:.2f}"
        ax.axhline(height, label=label, color=INK, linestyle=(0, dashes), linewidth=1.1)
    ax.set_ylim(0, 2.06)
    ax.set_ylabel("Distance between two classes")
    counting_axis(ax, "Iterations done in the first round")
