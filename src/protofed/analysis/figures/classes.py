"""One look per class, for figures in which samples are points."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from protofed.analysis.figures.base import shorten
from protofed.analysis.style import GREY, INK, MARKERS, PALETTE, LineStyle

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Wine and olive (Tol's muted scheme) make ten: as many colours as the usual data sets have classes.
CLASS_COLOURS = (*PALETTE, "#882255", "#999933")

LEGEND_LIMIT = 30  #: No reader can tell more classes apart: the legend leaves them out


def class_styles(K: int) -> list[LineStyle]:
    """Return a colour and a marker for each of ``K`` classes; up to 110 pairs are distinct."""
    return [LineStyle(CLASS_COLOURS[j % len(CLASS_COLOURS)], MARKERS[j % len(MARKERS)]) for j in range(K)]


def dots(ax: Axes, at: Any, style: LineStyle, *, size: float, alpha: float = 1.0, edge: str = "none") -> None:
    """Draw ``(n, 2)`` points of one class; ``size`` is a diameter in points."""
    ax.scatter(
        at[:, 0],
        at[:, 1],
        s=size**2,
        c=style.colour,
        marker=style.marker,
        alpha=alpha,
        edgecolors=edge,
        linewidths=0.0 if edge == "none" else size / 14,
        zorder=2 + size / 100 + (edge != "none"),
        rasterized=len(at) > 300,
    )


def class_legend(fig: Figure, ax: Axes, names: Sequence[str], shown: Sequence[int], kinds: dict[str, Any]) -> None:
    """Put the ``kinds`` of points and the classes ``shown`` into a legend at the right, which widens the figure."""
    styles = class_styles(len(names))
    entries = [
        *((label, {"marker": "o", "color": GREY, **look}) for label, look in kinds.items()),
        (" ", {}),
        *((shorten(names[j], 18), {"marker": styles[j].marker, "color": styles[j].colour}) for j in shown),
    ]
    entries = entries[: len(kinds)] if len(shown) > LEGEND_LIMIT else entries
    handles = [ax.plot([], [], **{"linestyle": "none", "ms": 6, **look})[0] for _, look in entries]
    labels = [label for label, _ in entries]
    columns = math.ceil(0.21 * len(entries) / fig.get_figheight())
    fig.set_figwidth(fig.get_figwidth() + columns * (0.45 + 0.066 * max(map(len, labels))))
    # Axes of fixed proportions would otherwise be moved away from their labels.
    fig.set_layout_engine("compressed")
    fig.legend(handles, labels, loc="outside right upper", ncols=columns, handlelength=1.2)


SAMPLE: dict[str, Any] = {"ms": 3}
LOCAL: dict[str, Any] = {"ms": 6, "mec": "white", "mew": 0.8}
GLOBAL: dict[str, Any] = {"ms": 10, "mec": INK, "mew": 1.2}
