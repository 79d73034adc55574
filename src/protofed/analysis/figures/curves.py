"""Figures over the rounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protofed.analysis.figures.base import (
    HEIGHT,
    WIDTH,
    canvas,
    counting_axis,
    figure,
    inner_labels_off,
    legend_below,
    log_axis,
    panels,
    percent_axis,
    series,
    write_bytes,
    write_title,
)
from protofed.analysis.figures.lines import Curve, band, read_numbers, scalars
from protofed.analysis.style import BLACK, PALETTE, method_styles, rule_colours
from protofed.errors import DataError
from protofed.runs.run import Run, by_label, rules_of, select_finished

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@figure("accuracy_rounds")
def accuracy_rounds(runs: list[Run], rule: str | None = None) -> Figure:
    """Test accuracy against rounds; several seeds give a mean and a band of ± one standard deviation.

    Options:
        rule: inference rule; by default each method's main rule
    """
    fig, ax = canvas()
    shown: list[float] = []
    for s in series(runs, rule):
        shown += band(ax, [_percent(run.accuracy(s.rule)) for run in s.runs], s.style.line(), s.label)
    percent_axis(ax, shown)
    counting_axis(ax)
    legend_below(fig, [ax])
    return fig


@figure("accuracy_rules")
def accuracy_rules(runs: list[Run]) -> Figure:
    """Test accuracy of every inference rule against rounds, one panel per method; rings mark the best rounds."""
    groups = {label: select_finished(group) for label, group in by_label(r for r in runs if r.evaluations).items()}
    if not groups:
        raise DataError("no accuracy to show: no round has been evaluated yet")
    fig, axes = _grid(len(groups))
    rules = rules_of(run for group in groups.values() for run in group)
    colours = rule_colours(rules.values())
    shown: list[float] = []
    for ax, (label, group) in zip(axes, groups.items(), strict=True):
        for rule in group[0].rules:
            curves = [_percent(run.accuracy(rule)) for run in group if rule in run.rules]
            shown += band(ax, curves, {"color": colours[rule], "marker": "o"}, rules[rule].title, ring=True)
        _title(ax, label, len(groups))
        counting_axis(ax)
    for ax in axes:
        percent_axis(ax, shown)
    inner_labels_off(axes, _columns(len(axes)))
    legend_below(fig, axes)
    return fig


@figure("accuracy_bytes")
def accuracy_bytes(runs: list[Run], rule: str | None = None) -> Figure:
    """Test accuracy against bytes sent so far, up and down (log scale); dashed: methods that send nothing.

    Options:
        rule: inference rule; by default each method's main rule
    """
    import numpy as np

    fig, ax = canvas()
    shown: list[float] = []
    reached: list[float] = []
    for s in series(runs, rule):
        accuracy = np.mean([[100 * run.accuracy(s.rule)[t] for t in s.rounds] for run in s.runs], axis=0)
        sent = np.mean([[run.sent()[t] for t in s.rounds] for run in s.runs], axis=0)
        line = s.style.line()
        if sent[-1]:
            some = sent > 0
            every = 0.1 if some.sum() > 1 else None  # spaced markers leave out a single point
            ax.plot(sent[some], accuracy[some], label=s.label, markevery=every, **line)
            reached += sent[some].tolist()
            shown += accuracy[some].tolist()
        else:
            ax.axhline(accuracy[-1], label=f"{s.label}: no traffic", color=line["color"], linestyle="--")
            shown.append(accuracy[-1])
    if not reached:
        raise DataError("no bytes to show: none of these runs sends anything")
    low, high = min(reached), max(reached)
    room = 1.1 * (high / low) ** 0.04
    log_axis(ax, "x", (low / room, high * room), write_bytes)
    ax.set_xlabel("Sent by all parties since the start, up and down (log scale)")
    percent_axis(ax, shown)
    legend_below(fig, [ax])
    return fig


@figure("losses")
def losses(runs: list[Run]) -> Figure:
    """Training loss against rounds: its terms and their total, one panel per method."""
    groups = {label: select_finished(group) for label, group in by_label(runs).items()}
    groups = {label: group for label, group in groups.items() if any(r.losses for r in group[0].rounds)}
    if not groups:
        raise DataError("no losses to show: no client has trained")
    terms = list(dict.fromkeys(t for g in groups.values() for r in g[0].rounds for t in r.losses))
    parts = [t for t in terms if t != "total"]
    styles: dict[str, dict[str, Any]] = {
        t: {"color": PALETTE[i % len(PALETTE)], "marker": "o"} for i, t in enumerate(parts)
    }
    styles["total"] = {"color": BLACK, "linestyle": "--"}
    fig, axes = _grid(len(groups))
    for ax, (label, group) in zip(axes, groups.items(), strict=True):
        own = [t for t in parts if any(t in r.losses for r in group[0].rounds)]
        for term in own + ["total"] * (len(own) > 1):
            curves = [read_numbers(run, "losses", term) for run in group]
            band(ax, curves, styles[term], term.replace("_", " "))
        ax.set_ylim(bottom=min(0.0, ax.get_ylim()[0]))
        ax.set_ylabel("Loss per training sample")
        _title(ax, label, len(groups))
        counting_axis(ax)
    inner_labels_off(axes, _columns(len(axes)))
    legend_below(fig, axes)
    return fig


@figure("diagnostics")
def diagnostics(runs: list[Run]) -> Figure:
    """The methods' diagnostics against rounds: one panel per number, at most nine."""
    styles = method_styles(run.label for run in runs)
    groups = {label: select_finished(group) for label, group in by_label(runs).items()}
    names = list(dict.fromkeys(n for run in runs for r in run.rounds for n in scalars(r.diagnostics)))[:9]
    if not names:
        raise DataError("no diagnostics to show: the method records no numbers")
    fig, axes = _grid(len(names))
    for ax, name in zip(axes, names, strict=True):
        for label, group in groups.items():
            curves = [read_numbers(run, "diagnostics", name) for run in group]
            band(ax, [c for c in curves if c], styles[label].line(), label)
        ax.set_ylabel(name.replace("_", " ").replace(".", ": "))
        counting_axis(ax)
    if len(groups) > 1:
        legend_below(fig, axes)
    return fig


def _percent(curve: Curve) -> dict[int, float]:
    return {t: 100 * value for t, value in curve.items()}


def _grid(count: int) -> tuple[Figure, list[Axes]]:
    """Return one panel of the usual size, or rows of two or three smaller ones."""
    if count == 1:
        return panels(1, WIDTH, HEIGHT)
    return panels(count, 3.0, 2.3, _columns(count))


def _columns(count: int) -> int:
    return 2 if count in (2, 4) else 3


def _title(ax: Axes, label: str, count: int) -> None:
    if count > 1:
        write_title(ax, label)
