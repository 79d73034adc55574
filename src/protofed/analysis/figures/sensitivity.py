"""How results depend on one option."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from protofed.analysis.figures.base import (
    figure,
    legend_below,
    log_axis,
    name_ticks,
    panels,
    percent_axis,
    write_bytes,
)
from protofed.analysis.style import GREY, method_styles
from protofed.errors import DataError, unknown_name
from protofed.runs.labels import NOT_THE_METHODS, flat, tell_apart
from protofed.runs.run import Run, rule_of, select_finished

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SPAN = 30  #: Values further apart than this factor go on a logarithmic axis

BEST: dict[str, Any] = {"linestyle": (0, (1.2, 1.4)), "linewidth": 1.2, "mfc": "white", "mew": 1.1, "ms": 4.5}
"""Note on the difference between the best round and the last one."""


class _Point(NamedTuple):
    """Mean and sample standard deviation over seeds."""

    mean: float
    spread: float


Line = dict[Any, list[Run]]
"""Value of the option → runs that differ in their seed alone; None for runs that have no such option."""


@figure("sensitivity")
def sensitivity(runs: list[Run], option: str | None = None, rule: str | None = None) -> Figure:
    """Final and best accuracy, and bytes per round, against the value of one option; mean ± std over seeds.

    Runs without that option are dashed lines.

    Options:
        option: dotted name, e.g. method.gamma; by default the one in which the runs differ
        rule: inference rule; by default each method's main rule
    """
    scored = [run for run in select_finished(runs) if run.evaluations and (rule is None or rule in run.rules)]
    if not scored:
        raise DataError(
            "no accuracy to show: no round has been evaluated" + (f" by the rule {rule!r}" if rule else "")
        )
    option = _name_option(scored, option)
    lines = _lines(scored, option)
    axis = _Axis([value for line in lines.values() for value in line if value is not None])
    styles = method_styles(lines)
    sends = any(_bytes_per_round(run) for run in scored)
    fig, axes = panels(1 + sends, 4.4, 3.3)
    shown: list[float] = []
    traffic: list[float] = []
    beside = [label for label, line in lines.items() if set(line) != {None}]
    for label, line in lines.items():
        look = styles[label].line()
        shift = 4.5 * (beside.index(label) - (len(beside) - 1) / 2) if label in beside else 0.0
        chosen = rule or rule_of(next(iter(line.values())))
        for name, own in (("best", look | BEST), ("final", look)):
            points = {
                value: _over([100 * getattr(run.outcome.accuracy[chosen], name) for run in group])
                for value, group in line.items()
                if value is not None or name == "final"
            }
            aside = shift + (1.25 if name == "best" else -1.25)
            shown += axis.draw(axes[0], points, own, aside, label if name == "final" else "")
        if sends:
            sent = {value: _over([_bytes_per_round(run) for run in group]) for value, group in line.items()}
            traffic += axis.draw(axes[1], sent, look, shift)
    axes[0].plot([], [], color=GREY, marker="o", label="best round on test data", **BEST)
    percent_axis(axes[0], shown, f"Test accuracy (%){f', {scored[0].rule(rule).title.lower()}' if rule else ''}")
    if sends:
        _bytes_axis(axes[1], traffic)
    for ax in axes:
        axis.write(ax, option)
    legend_below(fig, axes)
    return fig


def _name_option(runs: Sequence[Run], wanted: str | None) -> str:
    configurations = [flat(run.config, (*NOT_THE_METHODS, "recipe")) for run in runs]
    names = list(dict.fromkeys(name for options in configurations for name in options if name != "method.name"))
    varied = [n for n in names if len({str(options[n]) for options in configurations if n in options}) > 1]
    if wanted is None and len(varied) != 1:
        raise DataError(f"name the option, one of those in which the runs differ: {', '.join(varied) or 'none'}")
    if wanted is not None and wanted not in names:
        raise DataError(unknown_name("option of these runs", wanted, varied or names))
    if wanted is not None and wanted not in varied:
        value = next(options[wanted] for options in configurations if wanted in options)
        raise DataError(f"nothing to compare: {wanted} is {value!r} in all runs")
    return wanted or varied[0]


def _lines(runs: Sequence[Run], option: str) -> dict[str, Line]:
    options = [flat(run.config, NOT_THE_METHODS) for run in runs]
    rest = [{name: value for name, value in own.items() if name != option} for own in options]
    labels = tell_apart([run.method.rpartition(":")[2] for run in runs], rest)
    lines: dict[str, Line] = {}
    for run, label, own in zip(runs, labels, options, strict=True):
        value = own.get(option)
        if value is not None and not _is_number(value):
            value = str(value)
        lines.setdefault(label, {}).setdefault(value, []).append(run)
    return lines


def _over(values: Sequence[float]) -> _Point:
    return _Point(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)


def _bytes_per_round(run: Run) -> float:
    """Return the traffic of all parties in both directions, on average over all rounds."""
    return run.sent()[run.last_round] / len(run.rounds)


def _name(value: Any) -> str:
    if _is_number(value):
        return f"{value:.6g}".replace("inf", "∞")
    return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class _Axis:
    """The horizontal axis: numbers, on a linear or logarithmic scale, or one place for each category."""

    def __init__(self, values: Sequence[Any]) -> None:
        ordered = sorted(values) if all(_is_number(v) for v in values) else values
        # A value that is not finite has no place on a scale.
        self.numeric = all(_is_number(v) and math.isfinite(v) for v in values)
        self.values: list[Any] = list(dict.fromkeys(ordered if self.numeric else map(_name, ordered)))
        positive = [v for v in self.values if v > 0] if self.numeric else []
        self.log = len(positive) > 1 and self.values[0] >= 0 and positive[-1] > SPAN * positive[0]
        self.smallest = positive[0] if positive else 1.0

    def draw(
        self, ax: Axes, points: Mapping[Any, _Point], look: dict[str, Any], aside: float, label: str = ""
    ) -> list[float]:
        """Draw one line, shifted ``aside`` by some points; return the values drawn."""
        from matplotlib.transforms import ScaledTranslation

        placed = sorted((self._place(value), p) for value, p in points.items() if value is not None)
        shown = [p.mean + sign * p.spread for _, p in placed for sign in (-1, 1)]
        if placed:
            at = ax.transData + ScaledTranslation(aside / 72, 0, ax.figure.dpi_scale_trans)
            places, means, bars = [x for x, _ in placed], [p.mean for _, p in placed], [p.spread for _, p in placed]
            ax.plot(places, means, label=label, transform=at, **look)
            if any(bars):
                bar: dict[str, Any] = {"elinewidth": 0.9, "capsize": 2.2, "capthick": 0.9}
                ax.errorbar(places, means, bars, fmt="none", ecolor=look["color"], transform=at, **bar)
        if None in points:
            without = label and f"{label} (without the option)"
            ax.axhline(points[None].mean, color=look["color"], linestyle="--", linewidth=1.2, label=without)
            shown.append(points[None].mean)
        return shown

    def _place(self, value: Any) -> float:
        return float(value) if self.numeric else float(self.values.index(_name(value)))

    def write(self, ax: Axes, option: str) -> None:
        """Label the axis, with a tick at every value where there is room."""
        from matplotlib.ticker import FuncFormatter, NullLocator

        ax.set_xlabel(f"{option} (log scale)" if self.log else option)
        if not self.numeric:
            name_ticks(ax, "x", self.values, 20)
            ax.set_xlim(-0.5, len(self.values) - 0.5)
            return
        low, high = self.values[0], self.values[-1]
        if self.log:
            room = (high / self.smallest) ** 0.06
            if low > 0:
                log_axis(ax, "x", (low / room, high * room))
            else:  # Zero has no logarithm: below the smallest other value the scale is linear.
                ax.set_xscale("symlog", linthresh=self.smallest, linscale=0.5)
                ax.set_xlim(-0.25 * self.smallest, high * room)
                ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        else:
            room = 0.06 * (high - low) or 1.0
            ax.set_xlim(low - room, high + room)
        if len(self.values) <= 8:
            ax.set_xticks(self.values, [f"{value:.6g}" for value in self.values])
            ax.xaxis.set_minor_locator(NullLocator())


def _bytes_axis(ax: Axes, shown: Sequence[float]) -> None:
    from matplotlib.ticker import FuncFormatter

    low, high = min(shown), max(shown)
    if low > 0 and high > SPAN * low:
        log_axis(ax, "y", (low / 1.5, 1.5 * high), write_bytes)
    else:
        ax.set_ylim(0, 1.08 * high)  # lines that stand aside do not count for the automatic limits
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: write_bytes(value)))
    ax.set_ylabel("Sent per round, up and down")
