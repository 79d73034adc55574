"""The page about what joining is worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from protofed.analysis.figures.base import legend_below, panels, percent_axis, write_title
from protofed.analysis.figures.saving import inline_svg
from protofed.analysis.report.page import PageFigure, environment
from protofed.analysis.style import BLUE, GREY, theme
from protofed.analysis.table import TextCell, TextTable
from protofed.storage.files import write_text
from protofed.text import number, percent, size
from protofed.trained.curves import SHARES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protofed.trained.worth import Worth

PANELS = 24
"""Most sites whose curves are drawn."""


def write_worth(worth: Worth, out: Path) -> None:
    """Write one self-contained page: table, advice and learning curves."""
    from markupsafe import Markup

    drawing = _drawn(worth)
    told = "Accuracy on own test samples against the share of samples, alone and together, of every site."
    plot = (
        PageFigure(Markup(inline_svg(drawing, "w", told)))
        if drawing
        else PageFigure(None, "too many sites, or no test samples")
    )
    template = environment().get_template("worth.html")
    write_text(
        out, template.render(worth=worth, sites=sites_table(worth), plot=plot, gain=_gain(worth.gain), size=size)
    )


def sites_table(worth: Worth) -> TextTable:
    """Return one row per site."""
    table = TextTable(["Site", "Training", "Test", "Classes", "Alone", "Together", "Gain", "Alone", "Together"])
    table.groups = [("", 1), ("Samples", 2), ("", 1), ("Own test samples", 3), ("All sites’ test samples", 2)]
    for site in worth.sites:
        table.add(
            site.name,
            number(site.samples),
            number(site.tested),
            f"{site.classes} of {site.classes + len(site.lacks)}",
            _share(site.alone),
            _share(site.together),
            TextCell(*_gain(site.gain)),
            *map(_share, site.everywhere),
        )
    return table


def _share(value: float) -> str:
    return percent(None if value != value else value)  # NaN, without test samples


def _gain(gain: tuple[float, float, float]) -> tuple[str, str]:
    """Return a gain in points, and its interval."""
    mean, low, high = (f"{100 * value:+.1f}" for value in gain)
    return ("–", "") if gain[0] != gain[0] else (mean, f"{low} … {high}")


def _drawn(worth: Worth) -> Figure | None:
    """Return the learning curves of all sites together and of each; None if there are none."""
    lines = [
        (name, c) for name, c in [("All sites", worth.curves), *((s.name, s.curves) for s in worth.sites)] if c
    ]
    if not lines or len(lines) > PANELS + 1:
        return None
    with theme():
        fig, axes = panels(len(lines), 2.9, 2.2)
        for ax, (name, curves) in zip(axes, lines, strict=True):
            alone, together = ([100 * value for value in line] for line in curves)
            ax.plot(SHARES, together, color=BLUE, marker="o", label="with a share of the others’ samples")
            ax.plot(SHARES, alone, color=GREY, marker="X", linestyle="--", label="alone, with a share of its own")
            ax.set_xscale("log", base=2)
            ax.set_xticks(SHARES, ["⅛", "¼", "½", "1"])
            percent_axis(ax, [*alone, *together], "Accuracy (%)")
            write_title(ax, name)
        legend_below(fig, axes)
    return fig
