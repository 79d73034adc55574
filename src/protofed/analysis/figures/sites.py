"""The answer of a comparison as a picture: each site without and with an exchange."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from protofed.analysis.answer import MethodResult, answer
from protofed.analysis.figures.base import apply_theme, canvas, figure, legend_below, panels, square_map
from protofed.analysis.style import BLUE, GREY
from protofed.errors import DataError
from protofed.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 60  #: Most sites that are drawn


@figure("sites")
def sites(runs: list[Run]) -> Figure:
    """Final accuracy of every client by the best method that sends nothing, and by the best that exchanges."""
    found = answer(runs)
    if found is None or found.best is None or found.control is None:
        raise DataError("needs a method that sends nothing and one that exchanges")
    alone, together = _accuracies(found.control), _accuracies(found.best)
    both = {name: (alone[name], together[name]) for name in together if name in alone}
    return draw_sites(
        both, f"{found.control.label}, nothing sent", f"{found.best.label}, {found.best.exchanges} sent"
    )


@figure("resemblance")
def resemblance(runs: list[Run]) -> Figure:
    """Who resembles whom: how far apart two clients' means of the same class are, beyond chance (fedlda)."""
    import torch

    from protofed.experiments.ending import read_server
    from protofed.methods.parts.moments import senders
    from protofed.methods.parts.resemblance import STRANGERS

    known = len(runs) == 1 and runs[0].finished and read_server(runs[0].directory, ["apart"])
    server = read_server(runs[0].directory) if known else {}
    names, apart = senders(server), server.get("apart")
    if apart is None or apart.shape != (len(names),) * 2:
        raise DataError("needs one finished run of fedlda whose server saw who sent what")
    matrix = apart.double().clamp(min=0).sqrt()
    matrix[apart >= STRANGERS] = torch.nan
    matrix.fill_diagonal_(torch.nan)
    fig, (ax,) = panels(1, 5.0, 4.2)
    square_map(fig, ax, matrix, names, "Client", "Standard deviations within classes", vmin=0)
    return fig


@apply_theme
def draw_sites(accuracies: Mapping[str, tuple[float, float]], alone: str, together: str) -> Figure:
    """Return a line per site from its accuracy in percent alone to that together.

    Raises:
        DataError: If there are no sites, or too many.
    """
    if not 0 < len(accuracies) <= MOST:
        raise DataError(f"draws from 1 to {MOST} sites with test samples, not {len(accuracies)}")
    fig, ax = canvas(height=0.9 + (0.3 if len(accuracies) <= 20 else 0.2) * len(accuracies))
    ring: dict[str, Any] = {"markerfacecolor": "none", "markeredgewidth": 1.6, "linestyle": "none"}
    for place, (before, after) in enumerate(list(accuracies.values())[::-1]):
        ax.plot([before, after], [place, place], color=GREY, linewidth=1.2, zorder=1)
        ax.plot(before, place, "o", color=GREY, markersize=10, label=None if place else alone, **ring)
        ax.plot(after, place, "o", color=BLUE, markersize=6, label=None if place else together)
    ax.set_yticks(range(len(accuracies)), list(accuracies)[::-1])
    ax.set_ylim(-0.6, len(accuracies) - 0.4)
    ax.set_xlabel("Accuracy on the site's own samples (%)")
    legend_below(fig, [ax])
    return fig


def _accuracies(result: MethodResult) -> dict[str, float]:
    """Return each tested client's final accuracy in percent, mean over seeds."""
    found: dict[str, list[float]] = {}
    for run in result.runs:
        for name, value in zip(run.names, run.client_accuracies(result.rule), strict=True):
            if value is not None:
                found.setdefault(name, []).append(100 * value)
    return {name: statistics.fmean(values) for name, values in found.items()}
