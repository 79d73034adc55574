"""Figure of the classes that test samples have and the classes that they are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from protofed.analysis.figures.base import figure, map_axes, name_ticks, panels, title_runs, write_title
from protofed.analysis.figures.options import place_of
from protofed.analysis.style import INK
from protofed.errors import DataError
from protofed.runs.metrics import SampleMetrics
from protofed.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WRITTEN = 20  #: Classes up to which the numbers stand in the cells


@figure("confusion")
def confusion(runs: list[Run], client: str | int | None = None) -> Figure:
    """Confusion matrices of the final models, of runs whose metrics were computed.

    Options:
        client: name or number of a client; by default the samples of all clients together
    """
    measured = {title: run for title, run in title_runs(runs).items() if run.measured}
    if not measured:
        raise DataError("no metrics in these runs: compute them with protofed metrics RUN")
    most = max(len(run.class_names) for run in measured.values())
    side = min(7.0, max(3.2, 1.6 + 0.34 * most))
    fig, axes = panels(len(measured), side + 0.6, side, columns=2)
    for ax, (title, run) in zip(axes, measured.items(), strict=True):
        assert run.measured is not None
        part, of = run.measured.overall, ""
        if client is not None:
            of = run.clients[place_of(run.names, client, "client")].name
            part = run.measured.clients[of]
        _draw(ax, part, run.class_names)
        if len(measured) > 1 or of:
            write_title(ax, ", ".join(text for text in (title if len(measured) > 1 else "", of) if text))
    return fig


def _draw(ax: Axes, metrics: SampleMetrics, class_names: list[str]) -> None:
    import numpy as np

    K = len(class_names)
    counts = metrics.matrix(K)
    shares = counts / np.maximum(1, counts.sum(1, keepdims=True))
    many = K > WRITTEN
    ax.pcolormesh(
        shares, cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=0.15 if many else 0.8, rasterized=many
    )
    for (i, j), count in np.ndenumerate(counts):
        if count and not many:
            ink = "white" if shares[i, j] > 0.6 else INK
            ax.text(j + 0.5, i + 0.5, f"{count}", ha="center", va="center", fontsize=7.5, color=ink)
    name_ticks(ax, "x", class_names, 30, 0.5)
    name_ticks(ax, "y", class_names, 30, 0.5)
    ax.invert_yaxis()
    map_axes(ax, "Class given", "Class")
