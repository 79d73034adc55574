"""The feature space itself, where it has two dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protofed.analysis.figures.base import figure, panels, title_runs, write_title
from protofed.analysis.figures.classes import class_styles
from protofed.analysis.figures.embedding import Points, draw_points, points, points_legend
from protofed.analysis.figures.options import place_of
from protofed.analysis.style import INK, LineStyle
from protofed.errors import DataError
from protofed.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

FAR = 3.0  #: Prototypes so many times further out than the features are pointed at instead of shown


@figure("plane")
def plane(
    runs: list[Run],
    client: str | int | None = None,
    samples: int = 1500,
    local: bool = True,
    seed: int = 0,
    trust_code: bool = False,
    each: bool = False,
) -> Figure:
    """Test features in the plane (d = 2), with the global prototypes as rays from the origin, one panel per run.

    Options:
        client: name or number of one client; all of them if none
        samples: at most so many test samples
        local: show local prototypes as well
        seed: decides which samples
        trust_code: import the code that a run's configuration names, if it names any
        each: one panel per client and run
    """
    shown: dict[str, Points] = {}
    alone = each or client is not None
    for title, run in title_runs(runs).items():
        d = sorted({c.d for c in run.clients})
        if d != [2]:
            raise DataError(
                f"{run.directory}: features have d = {', '.join(map(str, d))}, a plane needs model.d = 2: "
                "the figure tsne shows any d"
            )
        groups = [run.names]
        if client is not None:
            groups = [[run.names[place_of(run.names, client, "client")]]]
        elif each:
            groups = [[c.name] for c in run.clients if sum(c.test)]
        for group in groups:
            chosen = points(run, group, samples, seed, trust_code)
            name = (group[0] if len(runs) == 1 else f"{title}: {group[0]}") if alone else title
            shown[name] = chosen if local else Points(*(part[chosen.kinds != 1] for part in chosen))
    single = len(shown) == 1
    fig, axes = panels(len(shown), *((5.2, 5.2) if single else (3.6, 3.6)), columns=2 if len(shown) == 4 else 3)
    K = max(len(run.class_names) for run in runs)
    for ax, (title, chosen) in zip(axes, shown.items(), strict=True):
        _draw(ax, chosen, K, lines=alone)
        if alone or not single:
            write_title(ax, title)
    points_legend(fig, axes[0], runs, shown.values())
    return fig


def _draw(ax: Axes, shown: Points, K: int, *, lines: bool) -> None:
    """Draw one run; ``lines`` joins local prototypes to the origin, which says something for one client only."""
    import numpy as np

    rays = shown.kinds == 2
    low, high = _window(shown.at[~rays], shown.at[rays])
    inside = np.all((shown.at >= low) & (shown.at <= high), axis=1)
    for j, style in enumerate(class_styles(K)):
        for tip in shown.at[rays & (shown.labels == j)]:
            _ray(ax, tip, style, low, high)
        for tip in shown.at[(shown.kinds == 1) & (shown.labels == j)] if lines else ():
            ax.plot(*zip((0, 0), tip, strict=True), color=style.colour, linewidth=0.9, linestyle="--", zorder=2.5)
    draw_points(ax, shown.at[inside], Points(*(part[inside] for part in shown)), K)
    ax.plot(0, 0, "+", color=INK, markersize=7, markeredgewidth=1.0, zorder=4)
    ax.set_xlim(low[0], high[0])
    ax.set_ylim(low[1], high[1])
    ax.set_box_aspect(1)  # of a square window: equal scales
    ax.set_xlabel("First feature")
    ax.set_ylabel("Second feature")
    if not np.all(inside[rays]):
        lengths = np.linalg.norm(shown.at[rays], axis=1)
        least, most = float(lengths.min()), float(lengths.max())
        told = f"prototypes at length {least:.3g}" + (f" to {most:.3g}" if most >= 1.01 * least else "")
        ax.annotate(told, (0.02, 0.02), xycoords="axes fraction", fontsize=8, color=INK, zorder=6)


def _window(features: NDArray[Any], tips: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the corners of the square to show: nearly all features, the origin, and tips that are not too far."""
    import numpy as np

    # A handful of outliers must not shrink all the rest.
    seen = np.vstack([np.quantile(features, [0.003, 0.997], axis=0), np.zeros((1, 2))])
    reach = np.linalg.norm(seen, axis=1).max()
    near = tips[np.linalg.norm(tips, axis=1) <= FAR * reach] if reach else tips
    seen = np.vstack([seen, near])
    middle = (seen.max(0) + seen.min(0)) / 2
    half = 1.1 * float((seen.max(0) - seen.min(0)).max()) / 2 or 1.0
    return middle - half, middle + half


def _ray(ax: Axes, tip: NDArray[Any], style: LineStyle, low: NDArray[Any], high: NDArray[Any]) -> None:
    """Draw a prototype as far as it reaches; one far out ends in an arrow, a short one is continued by dots."""
    import numpy as np

    length = float(np.linalg.norm(tip))
    if not length:
        return
    with np.errstate(divide="ignore"):
        rim = float(np.min(np.where(tip > 0, high / tip, np.where(tip < 0, low / tip, np.inf))))
    if rim < 1:
        end = (0.985 * rim * tip[0], 0.985 * rim * tip[1])
        arrow = {"arrowstyle": "-|>", "color": style.colour, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
        ax.annotate("", end, (0, 0), arrowprops=arrow, zorder=3)
        return
    if length < 0.16 * float((high - low).max()):
        ax.plot(*zip((0, 0), rim * tip, strict=True), color=style.colour, linewidth=0.9, linestyle=":", zorder=1.5)
    ax.plot(*zip((0, 0), tip, strict=True), color=style.colour, linewidth=1.6, zorder=3)
