"""Figures of where the prototypes lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from protofed.analysis.figures.base import (
    canvas,
    counting_axis,
    figure,
    legend_below,
    name_ticks,
    panels,
    square_map,
    write_title,
)
from protofed.analysis.restore import prototypes
from protofed.analysis.style import method_styles
from protofed.errors import CheckpointError, DataError
from protofed.runs.run import Run, by_label, select_finished

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protofed.prototypes.table import Prototypes


def final_prototypes(run: Run, whose: str) -> Prototypes | None:
    """Return prototypes that a run ended with; only finite ones count as present."""
    from protofed.prototypes.table import Prototypes

    tensors = prototypes(run, whose)
    rows, present = tensors.get("prototypes"), tensors.get("present")
    if rows is None:
        return None
    if present is None or rows.dim() != 2 or len({len(rows), len(present), len(run.class_names)}) > 1:
        where = run.directory / "prototypes.safetensors"
        raise CheckpointError(f"{where}: expected {len(run.class_names)} rows in {whose}.prototypes and .present")
    return Prototypes(rows, present.bool() & rows.isfinite().all(1))


@figure("prototype_distances")
def prototype_distances(runs: list[Run], metric: Literal["distance", "cosine"] = "distance") -> Figure:
    """Euclidean distance (or cosine) between the global prototypes of every two classes, per method.

    Options:
        metric: distance or cosine
    """
    from protofed.prototypes.geometry import pairwise_cosines, pairwise_distances

    matrices = {}
    for label, ((table, present), *_) in _tables(runs).items():
        matrix = pairwise_cosines(table) if metric == "cosine" else pairwise_distances(table)
        # A class and itself say nothing, and would stretch the colours.
        matrix.fill_diagonal_(float("nan"))
        matrix[~(present.unsqueeze(0) & present.unsqueeze(1) & matrix.isfinite())] = float("nan")
        matrices[label] = matrix
    # One scale for all methods, from 0 on: the same colour is the same distance.
    largest = max((float(m.nan_to_num(0.0).max()) for m in matrices.values() if m.numel()), default=0.0)
    limits: dict[str, Any] = {"vmin": 0, "vmax": largest or 1.0}
    if metric == "cosine":
        limits = {"vmin": -1, "vmax": 1, "cmap": "RdBu_r"}
    single = len(matrices) == 1
    fig, axes = panels(len(matrices), *((5.0, 4.2) if single else (3.5, 3.0)))
    for ax, (label, matrix) in zip(axes, matrices.items(), strict=True):
        told = "Cosine" if metric == "cosine" else "Euclidean distance"
        square_map(fig, ax, matrix, runs[0].class_names, "Class", told, 30 if single else 12, **limits)
        if not single:
            write_title(ax, label)
    return fig


@figure("margins")
def margins(runs: list[Run], sort: bool = False) -> Figure:
    """Normalised margin per class: distance to the nearest other global prototype, divided by the largest one.

    Methods stand side by side; several seeds give a mean and a bar of ± one standard deviation.

    Options:
        sort: order each method's classes by their margin
    """
    import torch

    from protofed.prototypes.geometry import normalise_margins

    fig, ax = canvas()
    groups = _tables(runs)
    styles = method_styles(run.label for run in runs)
    # Few classes leave room to put the methods beside each other.
    room = 0 if sort or len(runs[0].class_names) > 24 else 0.6
    for i, (label, tables) in enumerate(groups.items()):
        values = torch.stack([normalise_margins(t, p).masked_fill(~p, float("nan")) for t, p in tables])
        values = values.sort(1).values if sort else values
        K = values.shape[1]
        shift = room * (i / (len(groups) - 1) - 0.5) if len(groups) > 1 else 0.0
        look = styles[label].line() | {"markersize": 6.5 if K <= 24 else 4.5, "alpha": 0.9}
        look |= {"linewidth": 1.0} if sort else {"linestyle": "none"}
        several = len(tables) > 1
        spread = values.std(0).nan_to_num(0.0).numpy() if several else None
        ax.errorbar(
            [j + shift + sort for j in range(K)],
            values.nanmean(0).numpy(),
            spread,
            label=label,
            elinewidth=0.9,
            capsize=2.2,
            capthick=0.9,
            **look,
        )
    ax.set_ylim(0, 1.05)
    if sort:
        counting_axis(ax, "Rank of the class, smallest margin to largest")
    else:
        name_ticks(ax, "x", runs[0].class_names, 30)
        ax.set_xlabel("Class")
    ax.set_ylabel("Normalised margin")
    if len(groups) > 1:
        legend_below(fig, [ax])
    return fig


def _tables(runs: Sequence[Run]) -> dict[str, list[Prototypes]]:
    """Return label → the global prototypes of its runs."""
    groups = {
        label: [table for run in select_finished(group) if (table := final_prototypes(run, "global")) is not None]
        for label, group in by_label(runs).items()
    }
    groups = {label: tables for label, tables in groups.items() if tables}
    if not groups:
        raise DataError("no global prototypes to show: these methods have none, or no run has finished")
    return groups
