"""The page of ``protofed try``: the answer, pictures, and tables of sites and ways of learning."""

from __future__ import annotations

from protofed.analysis.figures.saving import inline_svg
from protofed.analysis.figures.sites import MOST, draw_sites
from protofed.analysis.report.page import PageFigure, environment
from protofed.analysis.table import TextCell, TextTable
from protofed.sites.results import Arm, TryResult
from protofed.storage.files import write_text
from protofed.text import number
from protofed.trained.paired import Interval

WIDE = 12  #: Most sites with a column of their own


def write_page(trial: TryResult, plot: PageFigure | None = None) -> PageFigure:
    """Write one self-contained page and return its picture, which is drawn once: it is of the closed forms alone.

    Raises:
        OutputError: If it cannot be written.
    """
    if plot is None:
        from markupsafe import Markup

        told = "Accuracy of each site on its own samples, alone and together, by the same closed form."
        both = {site.name: (site.alone.mean, site.together.mean) for site in trial.sites}
        drawn = draw_sites(both, "alone", "together") if len(both) <= MOST else None
        plot = PageFigure(Markup(inline_svg(drawn, "t", told)) if drawn else None, "too many sites")
    settled = [f for f in trial.notices if f.proposal and not f.open]
    tables = {"sites": sites_table(trial), "arms": arms_table(trial)}
    template = environment("protofed.sites").get_template("try.html")
    write_text(trial.page, template.render(trial=trial, settled=settled, plot=plot, **tables))
    return plot


def sites_table(trial: TryResult) -> TextTable:
    """Return one row per site: the closed form alone and together, and on classes that it lacks."""
    table = TextTable(["Site", "All", "Judged", "Classes", "Alone", "Together", "Gain", "Never seen"])
    table.groups = [("", 1), ("Samples", 2), ("", 1), ("Own classes", 3), ("Other classes", 1)]
    (together, alone), counts = trial.arms[:2], [(site.samples, site.judged) for site in trial.sites]
    totals = (number(sum(column)) for column in zip(*counts, strict=True))
    gain, unseen = _gain(trial.gain()), _share(trial.unseen)
    rows: list[tuple[str | TextCell, ...]] = []
    rows.append(("all", *totals, "", _cell(alone.accuracy()), _cell(together.accuracy()), gain, unseen))
    for site in trial.sites:
        classes = f"{site.classes} of {site.classes + len(site.lacks)}"
        own = _cell(site.alone), _cell(site.together), _gain(site.gain)
        rows.append((site.name, number(site.samples), number(site.judged), classes, *own, _share(site.unseen)))
    if trial.unseen != trial.unseen:  # NaN: no site lacks a class
        table.head.pop()
        table.groups.pop()
    for row in rows:
        table.add(*row[: len(table.head)])
    return table


def arms_table(trial: TryResult, most: int = WIDE) -> TextTable:
    """Return one row per way of learning: all sites, the closed form's gain over it, the first ``most`` sites."""
    few = [site.name for site in trial.sites[:most]]
    first, (label, name) = trial.arms[0], trial.positive
    table = TextTable(["Way of learning", "All sites", f"{first.name} gains", f"Sensitivity ({name})", *few])
    for arm in sorted(trial.arms, key=lambda arm: -arm.accuracy().mean):
        gain = TextCell("–") if arm is first else _gain(arm.behind())
        cells = (_cell(arm.accuracy(site)) for site in few)
        table.add(
            TextCell(arm.title, evidence(trial, arm)), _cell(arm.accuracy()), gain, _cell(arm.recall(label)), *cells
        )
    return table


def evidence(trial: TryResult, arm: Arm) -> str:
    """Return in a few words by what an arm is judged."""
    if arm.evidence.folds:
        return f"{arm.evidence.folds} folds"
    split = f"split, {len(trial.seeds)} seed{'s' if len(trial.seeds) > 1 else ''}"
    return split if arm.trained else "samples set aside"


def _cell(value: Interval) -> TextCell:
    if value.mean != value.mean:  # NaN
        return TextCell("–")
    return TextCell(f"{value.mean:.1f}", f"{value.low:.1f} … {value.high:.1f}")


def _share(value: float) -> str:
    return "–" if value != value else f"{value:.1f}"


def _gain(gain: Interval) -> TextCell:
    return TextCell(f"{gain.mean:+.1f}", f"{gain.low:+.1f} … {gain.high:+.1f}", strong=bool(gain.sign))
