"""Parts that all figures share: the registry, the canvas, axes and titles."""

from __future__ import annotations

import functools
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from protofed.analysis.style import FAINT, LineStyle, method_styles, theme
from protofed.errors import DataError
from protofed.registry import Registry
from protofed.runs.run import Run, by_label, rule_of, select_finished
from protofed.text import size

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axes._base import _AxesBase
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure
    from torch import Tensor

Draw = Callable[..., "Figure"]
"""``draw(runs, **options)``; raises DataError if the runs lack the data of the figure."""

figures: Registry[Draw] = Registry("figure")

WIDTH, HEIGHT = 5.6, 3.5  #: Inches: a report's column on a desk, the whole screen on a phone


def figure(name: str) -> Callable[[Draw], Draw]:
    """Return a decorator that registers a figure and draws it in the theme."""

    def register(draw: Draw) -> Draw:
        return figures.register(name)(apply_theme(draw))

    return register


def apply_theme(draw: Draw) -> Draw:
    """Return ``draw`` as a function that draws in the theme."""

    @functools.wraps(draw)
    def wrapper(*args: Any, **options: Any) -> Figure:
        with theme():
            return draw(*args, **options)

    return wrapper


def canvas(width: float = WIDTH, height: float = HEIGHT) -> tuple[Figure, Axes]:
    """Return a new figure of one panel; its size is in inches."""
    fig, axes = panels(1, width, height)
    return fig, axes[0]


def panels(count: int, width: float = WIDTH, height: float = HEIGHT, columns: int = 3) -> tuple[Figure, list[Axes]]:
    """Return a new figure of ``count`` panels of the given size each, in inches, in rows of up to ``columns``."""
    from matplotlib.figure import Figure

    columns = min(columns, count)
    rows = math.ceil(count / columns)
    fig = Figure(figsize=(columns * width, rows * height), layout="constrained")
    axes = fig.subplots(rows, columns, squeeze=False).flatten().tolist()
    for unused in axes[count:]:
        unused.remove()
    return fig, axes[:count]


def write_title(ax: Axes, text: str) -> None:
    """Write a panel's title, in several lines where it is longer than the panel is wide."""
    place = ax.get_subplotspec()
    columns = place.get_gridspec().ncols if place is not None else 1
    # In inches: a letter takes about 0.075.
    letters = int(ax.figure.bbox.width / ax.figure.dpi / columns / 0.075)
    ax.set_title(textwrap.fill(text, letters, break_long_words=False))


def legend_below(fig: Figure, axes: Sequence[Axes]) -> None:
    """Put one legend under the axes, where it covers no data, and make room for it."""
    entries = {label: handle for ax in axes for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if not entries:
        return
    # In inches: a letter takes about 0.064, the sample of the line and its gap half an inch.
    columns = int(fig.get_figwidth() / (0.5 + 0.064 * max(map(len, entries))))
    rows = math.ceil(len(entries) / max(1, columns))
    columns = math.ceil(len(entries) / rows)
    fig.set_figheight(fig.get_figheight() + 0.2 * (rows - 1))
    fig.legend(entries.values(), entries, loc="outside lower center", ncols=columns, columnspacing=1.4)


def map_axes(ax: Axes, x: str, y: str) -> None:
    """Label the axes of a map of cells, which have neither grid nor ticks nor frame."""
    ax.grid(False)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel(x)
    ax.set_ylabel(y)


def square_map(
    fig: Figure, ax: Axes, matrix: Tensor, names: Sequence[str], what: str, label: str, limit: int = 30, **look: Any
) -> None:
    """Draw a number for every two of the things with these names; NaN stays faint."""
    mesh = ax.pcolormesh(matrix.numpy(), rasterized=matrix.numel() > 4000, **look)
    ax.set_facecolor(FAINT)
    ax.invert_yaxis()
    for axis in ("x", "y"):
        name_ticks(ax, axis, names, limit, 0.5)
    map_axes(ax, what, what)
    colour_bar(fig, mesh, ax, label)


def colour_bar(
    fig: Figure,
    cells: ScalarMappable,
    ax: Axes | Sequence[Axes],
    label: str = "",
    *,
    pad: float = 0.02,
    **look: Any,
) -> None:
    """Add a colour bar to a map."""
    bar = fig.colorbar(cells, ax=ax, fraction=0.05, pad=pad, **look)
    bar.set_label(label)
    bar.outline.set_visible(False)


def inner_labels_off(axes: Sequence[Axes], columns: int) -> None:
    """Keep axis labels at the left and lower rim of a grid of panels that all show the same quantities."""
    for i, ax in enumerate(axes):
        if i % columns:
            ax.set_ylabel("")
        if i + columns < len(axes):
            ax.set_xlabel("")


def percent_axis(ax: Axes, values: Sequence[float], what: str = "Test accuracy (%)") -> None:
    """Label the vertical axis and let it show ``values`` with room around, within 0 to 100 %."""
    known = [v for v in values if not math.isnan(v)] or [0.0, 100.0]
    # At least five points high, or else noise would look like a trend.
    room = max(0.06 * (max(known) - min(known)), 1.0, 2.5 - (max(known) - min(known)) / 2)
    ax.set_ylim(max(-1.0, min(known) - room), min(101.0, max(known) + room))
    ax.set_ylabel(what)


def counting_axis(ax: Axes, what: str = "Round") -> None:
    """Label the horizontal axis and give it whole numbers."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, min_n_ticks=1))
    ax.set_xlabel(what)


def log_axis(
    ax: Axes,
    direction: Literal["x", "y"],
    span: tuple[float, float],
    write: Callable[[float], str] = "{:,.6g}".format,
) -> None:
    """Give an axis a logarithmic scale with ticks in plain figures, more of them where it covers less.

    matplotlib writes powers of ten as mathematics, which the theme does not parse: names of runs may contain ``$``.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = span
    ratio = high / low
    steps = (1.0,) if ratio > 300 else (1.0, 3.0) if ratio > 30 else (1.0, 2.0, 5.0)
    ax.set(**{f"{direction}scale": "log", f"{direction}lim": span})
    axis = ax.xaxis if direction == "x" else ax.yaxis
    axis.set_major_locator(LogLocator(subs=steps, numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: write(value)))
    axis.set_minor_formatter(NullFormatter())


def write_bytes(number: float) -> str:
    """Return a number of bytes as a tick is written: ``10 kB``, without zeros after the point."""
    return re.sub(r"\.0+ ", " ", size(number))


def name_ticks(
    ax: _AxesBase, axis: str, names: Sequence[str], limit: int, offset: float = 0.0, letters: int = 18
) -> None:
    """Write ``names`` along ``"x"`` or ``"y"`` at 0, 1, …; of more than ``limit``, every second, third, … one."""
    step = math.ceil(len(names) / limit) if names else 1
    places = range(0, len(names), step)
    texts = [shorten(names[i], letters) for i in places]
    ticks = [i + offset for i in places]
    if axis == "y":
        ax.set_yticks(ticks, texts)
        return
    if max((len(t) for t in texts), default=0) * len(texts) <= 60:
        ax.set_xticks(ticks, texts)
    elif len(texts) <= 24:
        ax.set_xticks(ticks, texts, rotation=45, ha="right", rotation_mode="anchor")
    else:
        ax.set_xticks(ticks, texts, rotation=90)


def title_runs(runs: Sequence[Run]) -> dict[str, Run]:
    """Return the runs that have finished (all if none has) by a title each, for figures with one panel per run."""
    titles: dict[str, Run] = {}
    for label, group in by_label(runs).items():
        for run in select_finished(group):
            title = f"{label}, seed {run.seed}" if len(group) > 1 else label
            titles[title if title not in titles else f"{title} ({run.directory.name})"] = run
    return titles


class Series(NamedTuple):
    """One method's runs under one inference rule."""

    label: str
    style: LineStyle
    runs: list[Run]
    rule: str

    @property
    def rounds(self) -> list[int]:
        """The rounds that were evaluated in all runs."""
        return sorted(set.intersection(*(set(run.accuracy(self.rule)) for run in self.runs)))


def series(runs: Sequence[Run], rule: str | None = None) -> list[Series]:
    """Return the methods' runs that were scored by ``rule`` (each method's main rule if None)."""
    styles = method_styles(run.label for run in runs)
    lines: list[Series] = []
    for label, group in by_label(runs).items():
        scored = [run for run in select_finished(group) if run.evaluations and (rule is None or rule in run.rules)]
        if scored:
            chosen = rule or rule_of(scored)
            lines.append(Series(label, styles[label], [r for r in scored if chosen in r.rules], chosen))
    if not lines:
        known = ", ".join(dict.fromkeys(r for run in runs for r in run.rules))
        raise DataError(
            f"no run was scored by the rule {rule!r}: choose one of {known}"
            if known
            else "no accuracy to show: no round has been evaluated yet"
        )
    if len({s.rule for s in lines}) > 1:
        return [s._replace(label=f"{s.label} ({s.rule})") for s in lines]
    return lines


def shorten(name: str, length: int) -> str:
    """Return ``name`` cut to ``length`` letters."""
    return name if len(name) <= length else f"{name[: length - 1]}…"
