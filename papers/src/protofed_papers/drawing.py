"""Figures of the papers that no general figure shows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protofed.analysis.figures import draw_figure, figures
from protofed.analysis.figures.base import (
    apply_theme,
    colour_bar,
    counting_axis,
    legend_below,
    name_ticks,
    panels,
    percent_axis,
    write_title,
)
from protofed.analysis.figures.classes import class_styles
from protofed.analysis.figures.lines import band, read_numbers
from protofed.analysis.style import GREY, PALETTE, method_styles
from protofed.config.schema import apply_overrides, load_recipe, resolve
from protofed.errors import DataError
from protofed.experiments.loading import load_data
from protofed.runs.labels import flat
from protofed.runs.run import Run, by_label, select_finished
from protofed.trained.paired import interval
from protofed_papers.aligning import alignment
from protofed_papers.cells import combinations, scaled
from protofed_papers.layout import Find, Scope, Sheet
from protofed_papers.papers import ACCURACY, Figure, Paper

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from protofed.config.schema import Experiment


def draw(
    paper: Paper, figure: Figure, runs: list[Run], scope: Scope, find: Find, place: Mapping[str, Any]
) -> Drawing:
    """Draw a figure of a paper from the runs that exist; ``place`` are options that do not change results."""
    if figure.draw in figures:
        return draw_figure(figure.draw, runs, figure.options)
    if figure.draw in _WITHOUT_RUNS:
        return _WITHOUT_RUNS[figure.draw]()
    if figure.draw == "error_bars":
        return error_bars(Sheet(paper, paper.table(figure.table or 0), scope, find), figure.over)
    if figure.draw in ("splits", "spiral_data"):
        given = combinations(figure.vary)
        tree = load_recipe(figure.recipe)
        chosen = [
            scaled(apply_overrides(tree, g), "local", scope.seeds[0], scope.scale, scope.overrides) for g in given
        ]
        placed = [resolve(apply_overrides(e.to_tree(), place)) for e in chosen]
        return splits(given, placed) if figure.draw == "splits" else spiral_data(placed[0])
    return _OF_RUNS[figure.draw](runs, **figure.options)


@apply_theme
def cost() -> Drawing:
    """TinyProto Figure 1: parameters that a client of FedAvg and of prototype methods sends, for ShuffleNet v2."""
    from matplotlib.ticker import FuncFormatter
    from torchvision.models import shufflenet_v2_x0_5

    model = shufflenet_v2_x0_5()
    width = model.fc.in_features
    extractor = sum(p.numel() for n, p in model.named_parameters() if not n.startswith("fc."))
    fig, axes = panels(2, 4.4, 3.3)
    classes, dimensions = [10, 20, 50, 100, 200, 500, 1000], [50, 100, 200, 500, 1000, 2000]
    axes[0].plot(classes, [extractor + (width + 1) * K for K in classes], "o-", label="FedAvg", color=PALETTE[0])
    for d, colour in zip((128, 512, 1024), PALETTE[1:], strict=False):
        axes[0].plot(classes, [K * d for K in classes], "s-", label=f"prototypes, d = {d}", color=colour)
    axes[1].plot(
        dimensions, [extractor + width * d + d + (d + 1) * 1000 for d in dimensions], "o-", color=PALETTE[0]
    )
    for K, colour in zip((10, 100, 1000), PALETTE[4:], strict=False):
        axes[1].plot(dimensions, [K * d for d in dimensions], "^-", label=f"prototypes, K = {K}", color=colour)
    for ax, name in zip(axes, ("Classes K", "Dimension d (FedAvg: K = 1000)"), strict=True):
        ax.set_xscale("log")
        ax.set_yscale("log")
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        ax.set_xlabel(name)
        ax.set_ylabel("Parameters sent by a client")
    legend_below(fig, axes)
    return fig


@apply_theme
def gfpl_cost() -> Drawing:
    """GFPL Figure 7: parameters of a client in a round that exchanges, nothing fused, against n, m and w; d = 50.

    A component has a mean, a standard deviation and a weight: 2d + 1 numbers. A client sends w·n of them and
    receives those of all m clients.
    """
    d, n, m, w = 50, 4, 20, 3
    fig, axes = panels(3, 3.2, 3.0)
    lines: list[tuple[str, list[int], Callable[[int], int]]] = [
        ("Components n of a class's mixture", [1, 2, 4, 8, 16], lambda x: w * x * (1 + m) * (2 * d + 1)),
        ("Clients m", [5, 10, 20, 50, 100], lambda x: w * n * (1 + x) * (2 * d + 1)),
        ("Mean number of classes w", [2, 3, 4, 5, 10], lambda x: x * n * (1 + m) * (2 * d + 1)),
    ]
    for ax, (name, xs, of) in zip(axes, lines, strict=True):
        ax.plot(xs, [of(x) / 1000 for x in xs], "o-", color=PALETTE[0])
        ax.set_xlabel(name)
        ax.set_ylabel("Thousand parameters")
        ax.set_ylim(bottom=0)
    return fig


_WITHOUT_RUNS: dict[str, Callable[[], Drawing]] = {"cost": cost, "gfpl_cost": gfpl_cost}


@apply_theme
def spiral_data(experiment: Experiment) -> Drawing:
    """ProtoNorm Figure 1a: the samples of the spiral."""
    import torch

    from protofed.data import load_pool

    pool = load_pool(experiment.data, experiment.seed)
    if pool.x.shape[1:] != (2,):
        raise DataError(f"samples of shape {tuple(pool.x.shape[1:])} do not lie in a plane")
    fig, axes = panels(1, 4.6, 4.2)
    step = max(1, len(pool.y) // 6000)
    x, y = torch.as_tensor(pool.x)[::step].numpy(), pool.y[::step].numpy()
    for j, style in enumerate(class_styles(len(pool.class_names))):
        here = y == j
        axes[0].plot(x[here, 0], x[here, 1], ".", ms=2.5, color=style.colour, label=pool.class_names[j])
    axes[0].set_aspect("equal")
    axes[0].set_xlabel("First feature")
    axes[0].set_ylabel("Second feature")
    if len(pool.class_names) <= 12:
        legend_below(fig, axes)
    return fig


@apply_theme
def splits(given: Sequence[Mapping[str, Any]], experiments: Sequence[Experiment]) -> Drawing:
    """ProtoNorm Figures 7 and 8: samples of every client and class, one panel per split."""
    from matplotlib.colors import PowerNorm

    tables = [load_data(experiment).class_counts() for experiment in experiments]
    fig, axes = panels(len(tables), 4.2, 3.6, columns=2)
    for ax, own, table in zip(axes, given, tables, strict=True):
        norm = PowerNorm(0.5, vmin=0, vmax=max(1, int(table.max())))
        mesh = ax.pcolormesh(table.numpy(), cmap="Blues", norm=norm, rasterized=True)
        ax.invert_yaxis()
        ax.grid(False)
        ax.set_xlabel("Class")
        ax.set_ylabel("Client")
        write_title(ax, ", ".join(f"{name.rpartition('.')[2]} = {value}" for name, value in own.items()))
        colour_bar(fig, mesh, ax)
    return fig


@apply_theme
def error_bars(sheet: Sheet, over: Mapping[str, Sequence[str]]) -> Drawing:
    """GFPL Figure 5: accuracy of every method with its interval over seeds, one panel per setting."""
    places: dict[str, list[tuple[str, tuple[float, ...], str]]] = {}
    for (row, column), entry in sheet.layout.entries.items():
        settings = dict(zip((*sheet.table.rows, *sheet.table.columns), (*row.section, *column), strict=False))
        if entry.metric != ACCURACY or any(settings.get(n) not in values for n, values in over.items()):
            continue
        values = tuple(sheet.values(entry).values())
        if values:
            printed = entry.printed.value if entry.printed else ""
            places.setdefault(", ".join(settings.values()), []).append((row.method, values, printed))
    if not places:
        raise DataError("no run of this figure's table is there")
    fig, axes = panels(len(places), 4.0, 3.2)
    for ax, (title, methods) in zip(axes, places.items(), strict=True):
        shown = []
        for i, (_, values, printed) in enumerate(methods):
            mean, half = statistics.fmean(values), interval(values).half if len(values) > 1 else 0.0
            ax.errorbar(i, mean, half, fmt="o", color=PALETTE[0], capsize=3, label="ours, 95 % interval")
            shown += [mean - half, mean + half]
            if printed:
                ax.plot(i, float(printed), "x", color=GREY, label="paper")
                shown.append(float(printed))
        name_ticks(ax, "x", [method for method, _, _ in methods], 20)
        percent_axis(ax, [min(100.0, max(0.0, value)) for value in shown])
        write_title(ax, title)
    legend_below(fig, axes)
    return fig


@apply_theme
def response(runs: list[Run], option: str, recorded: str) -> Drawing:
    """FedProto Figure 3: accuracy and the distance to the prototypes against an option.

    Args:
        recorded: ``losses.NAME`` of the weighted distance, to be divided by ``option`` unless that is 0.
    """
    part, _, name = recorded.partition(".")
    points: dict[float, list[tuple[float, float | None]]] = {}
    for run in select_finished(runs):
        value = float(flat(run.config)[option])
        last = getattr(run.rounds[-1], part).get(name)
        apart = last / value if value and last is not None else None
        points.setdefault(value, []).append((100 * run.outcome.accuracy[run.main_rule].client_mean, apart))
    fig, axes = panels(2, 4.4, 3.3)
    xs = sorted(points)
    means = [statistics.fmean(a for a, _ in points[x]) for x in xs]
    axes[0].plot(xs, means, "o-", color=PALETTE[0])
    percent_axis(axes[0], means)
    known = [
        (x, statistics.fmean(d for _, d in points[x] if d is not None)) for x in xs if points[x][0][1] is not None
    ]
    axes[1].plot([x for x, _ in known], [d for _, d in known], "s-", color=PALETTE[1])
    axes[1].set_ylabel("Distance to the global prototypes")
    axes[1].set_ylim(bottom=0)
    for ax in axes:
        ax.set_xlabel(option)
    return fig


@apply_theme
def equal_traffic(runs: list[Run]) -> Drawing:
    """TinyProto Figure 6: accuracy against the numbers sent per class, with and without sparsification."""
    lines: dict[str, dict[int, list[float]]] = {}
    for run in select_finished(runs):
        options = flat(run.config)
        sparse = bool(options["method.cps"])
        name = "CPS: s entries of d = " + str(options["model.d"]) if sparse else "features of d dimensions"
        sent = int(options["method.s"] if sparse else options["model.d"])
        best = 100 * run.outcome.accuracy[run.main_rule].best
        lines.setdefault(name, {}).setdefault(sent, []).append(best)
    fig, axes = panels(1, 4.8, 3.4)
    shown = []
    for (name, line), colour in zip(sorted(lines.items()), PALETTE, strict=False):
        xs = sorted(line)
        means = [statistics.fmean(line[x]) for x in xs]
        halves = [interval(line[x]).half if len(line[x]) > 1 else 0.0 for x in xs]
        axes[0].errorbar(xs, means, halves, fmt="o-", color=colour, label=name, capsize=3)
        shown += means
    percent_axis(axes[0], shown, "Best test accuracy (%)")
    axes[0].set_xlabel("Numbers sent per class")
    legend_below(fig, axes)
    return fig


@apply_theme
def alignment_accuracy(runs: list[Run]) -> Drawing:
    """ProtoNorm Figure 3: alignment iterations and test accuracy in each round."""
    groups = {label: select_finished(group) for label, group in by_label(runs).items()}
    styles = method_styles(groups)
    fig, axes = panels(2, 4.4, 3.3)
    shown: list[float] = []
    for label, group in groups.items():
        line = styles[label].line()
        counts = [c for run in group if (c := read_numbers(run, "diagnostics", "alignment_iterations"))]
        band(axes[0], counts, line, label)
        curves = [{t: 100 * a for t, a in run.accuracy(run.main_rule).items()} for run in group]
        shown += band(axes[1], curves, line, label)
    axes[0].set_ylabel("Alignment iterations")
    axes[0].set_ylim(bottom=0)
    percent_axis(axes[1], shown)
    for ax in axes:
        counting_axis(ax)
    legend_below(fig, axes)
    return fig


_OF_RUNS: dict[str, Callable[..., Drawing]] = {
    "alignment": alignment,
    "response": response,
    "equal_traffic": equal_traffic,
    "alignment_accuracy": alignment_accuracy,
}
