"""Prototypes as they are: one row per vector, one column per dimension."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from protofed.analysis.figures.base import colour_bar, figure, panels, shorten, title_runs, write_title
from protofed.analysis.figures.geometry import final_prototypes
from protofed.analysis.figures.options import place_of
from protofed.analysis.style import BLUE, FAINT
from protofed.errors import ConfigError, DataError
from protofed.runs.run import Run

ZERO = "#F1F3F5"
MISSING: dict[str, Any] = {"color": FAINT, "hatch": "/////", "edgecolor": "#C3CAD2", "linewidth": 0}
"""The look of a row without a prototype."""

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray
    from torch import Tensor

    from protofed.prototypes.table import Prototypes

    Rows = list[tuple[str, Tensor | None]]
    """Name of a row, and its vector; None where there is none."""


@dataclass(frozen=True)
class _Sheet:
    """The rows of one panel."""

    rows: Rows
    kind: str
    subject: str = ""
    last_apart: bool = False


@figure("prototype_heatmap")
def prototype_heatmap(
    runs: list[Run], class_: str | int | None = None, client: str | int | None = None, binary: bool = False
) -> Figure:
    """Prototypes entry by entry: of all classes, of one class over the clients, or of one client.

    Global prototypes are shown as clients use them (scaled by γ), local ones without what TinyProto's masks omit.

    Options:
        class: name or number of the class to show over the clients (default: the global prototypes)
        client: name or number of the client to show over the classes
        binary: show which entries are not zero instead of their values
    """
    if class_ is not None and client is not None:
        raise ConfigError("figure prototype_heatmap: choose class or client, not both")
    which = "class" if class_ is not None else "client" if client is not None else "global"
    sheets: dict[str, _Sheet] = {}
    for title, run in title_runs(runs).items():
        sheet = _sheet(run, which, class_, client)
        if any(row is not None for _, row in sheet.rows):
            sheets[title] = sheet
    if not sheets:
        raise DataError(f"no {'local' if which != 'global' else 'global'} prototypes to show in these runs")
    most = max(len(sheet.rows) for sheet in sheets.values())
    fig, axes = panels(len(sheets), 7.6, min(9.0, max(2.0, 1.0 + 0.2 * most)), columns=1)
    for ax, (title, sheet) in zip(axes, sheets.items(), strict=True):
        _draw(fig, ax, sheet, binary)
        write_title(ax, ", ".join(part for part in (title * (len(sheets) > 1), sheet.subject) if part))
    return fig


@figure("prototype_panels")
def prototype_panels(runs: list[Run], classes: tuple[int, ...] = (0,), client: str | int | None = None) -> Figure:
    """Prototypes of some classes over the clients, of one client, and of the server: values, and which exceed 0.

    Options:
        classes: numbers of the classes to show over the clients
        client: name or number of the client to show over the classes
    """
    sheets: list[tuple[str, _Sheet]] = []
    for title, run in title_runs(runs).items():
        # Of the papers' class or client, a smaller federation has perhaps none.
        own = min(client, len(run.clients) - 1) if isinstance(client, int) else client
        chosen = [_sheet(run, "class", min(j, len(run.class_names) - 1), None) for j in classes]
        for sheet in (*chosen, _sheet(run, "client", None, own), _sheet(run, "global", None, None)):
            if any(row is not None for _, row in sheet.rows):
                sheets.append((title if len(runs) > 1 else "", sheet))
    if not sheets:
        raise DataError("no prototypes to show in these runs")
    most = max(len(sheet.rows) for _, sheet in sheets)
    fig, axes = panels(2 * len(sheets), 6.0, min(6.0, max(2.0, 1.0 + 0.12 * most)), columns=2)
    for i, (title, sheet) in enumerate(sheets):
        for ax, binary in zip(axes[2 * i : 2 * i + 2], (False, True), strict=True):
            # TinyProto's binary pictures show which entries exceed 0.
            least = 0 if binary else -math.inf
            rows = [(name, None if row is None else row.clamp(min=least)) for name, row in sheet.rows]
            _draw(fig, ax, replace(sheet, rows=rows), binary)
            kind = "entries above 0" if binary else "values"
            write_title(ax, ", ".join(part for part in (title, sheet.subject or "global prototypes", kind) if part))
    return fig


def _sheet(run: Run, which: str, class_: str | int | None, client: str | int | None) -> _Sheet:
    from protofed.analysis.restore import restore_global

    if which == "global":
        return _Sheet(_rows(run.class_names, restore_global(run, final_prototypes(run, "global"))), "Class")
    names = run.names
    if which == "client":
        name = names[place_of(names, client, "client")]
        return _Sheet(_rows(run.class_names, _own(run, [name]).get(name)), "Class", name)
    j = place_of(run.class_names, class_, "class")
    own = _own(run, names)
    rows: Rows = [(name, _row(own.get(name), j)) for name in names]
    together = _row(restore_global(run, final_prototypes(run, "global")), j)
    last: Rows = [] if together is None else [("global", together)]
    return _Sheet(rows + last, "Client", f"class {run.class_names[j].removeprefix('class ')}", bool(last))


def _own(run: Run, clients: Sequence[str]) -> dict[str, Prototypes]:
    """Return the prototypes of those clients that have any, as they send them."""
    from protofed.analysis.restore import restore_local

    tables = {name: final_prototypes(run, f"local.{name}") for name in clients}
    return restore_local(run, {name: own for name, own in tables.items() if own is not None})


def _row(table: Prototypes | None, j: int) -> Tensor | None:
    return table.rows[j] if table is not None and bool(table.present[j]) else None


def _rows(names: Sequence[str], table: Prototypes | None) -> Rows:
    return [(name, _row(table, j)) for j, name in enumerate(names)]


def _draw(fig: Figure, ax: Axes, sheet: _Sheet, binary: bool) -> None:
    import numpy as np
    from matplotlib.colors import ListedColormap

    names = [name for name, _ in sheet.rows]
    tops = np.arange(float(len(names)))
    values = _matrix(sheet.rows)
    if sheet.last_apart:
        tops[-1] += 0.6
        values = np.insert(values, len(names) - 1, np.nan, axis=0)
    edges = np.unique([tops, tops + 1])
    two = {"cmap": ListedColormap([ZERO, BLUE]), "vmin": 0, "vmax": 1}
    look, extend = (two, "neither") if binary else _colours(values)
    shown = np.where(np.isnan(values), np.nan, values != 0) if binary else values
    mesh = ax.pcolormesh(np.arange(values.shape[1] + 1), edges, shown, rasterized=True, **look)
    for top, (_, row) in zip(tops, sheet.rows, strict=True):
        if row is None:
            ax.barh(top, values.shape[1], 1, align="edge", **MISSING)
    if len(names) <= 40:
        ax.hlines(tops[1:], 0, values.shape[1], color="white", linewidth=1.0)
    step = math.ceil(len(names) / 44)
    ticks = (tops + 0.5)[::step]
    ax.set_yticks(ticks, [shorten(name, 18) for name in names[::step]])
    ax.set_ylim(edges[-1], 0)
    ax.grid(False)
    ax.tick_params(axis="y", length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel("Dimension")
    ax.set_ylabel(sheet.kind)
    if binary:
        right = ax.secondary_yaxis("right")
        shares = ["" if row is None else f"{float((row != 0).double().mean()):.0%}" for _, row in sheet.rows]
        right.set_yticks(ticks, shares[::step])
        right.tick_params(length=0, labelsize=7.5)
        right.spines[:].set_visible(False)
        right.set_ylabel("Entries that are not zero")
        return
    colour_bar(fig, mesh, ax, "Value", pad=0.015, aspect=max(16, len(names)), extend=extend)


def _matrix(rows: Rows) -> NDArray[Any]:
    """Return the rows as one matrix; NaN where there is none, or beyond the end of a shorter one."""
    import numpy as np

    width = max(len(row) for _, row in rows if row is not None)
    matrix = np.full((len(rows), width), np.nan)
    for i, (_, row) in enumerate(rows):
        if row is not None:
            matrix[i, : len(row)] = row.double().numpy()
    return matrix


def _colours(values: NDArray[Any]) -> tuple[dict[str, Any], str]:
    """Return the colours, white at 0, and which ends of the bar are open.

    Few entries are much larger than all others: the largest half percent share the last colour.
    """
    import numpy as np

    known = values[np.isfinite(values)]
    sizes = np.abs(known[known != 0])
    largest = float(sizes.max()) if len(sizes) else 1.0
    top = float(np.quantile(sizes, 0.995)) if len(sizes) else 1.0
    signed = bool((known < 0).any())
    if largest > 1.05 * top:
        extend = "both" if signed else "max"
    else:
        top, extend = largest, "neither"
    return {"cmap": "RdBu_r" if signed else "Blues", "vmin": -top if signed else 0, "vmax": top}, extend
