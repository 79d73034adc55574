"""The page of ``protofed try``: the answer, a picture, and a table of sites and ways of learning."""

from __future__ import annotations

from collections.abc import Sequence

from protofed.analysis.figures.saving import inline_svg
from protofed.analysis.figures.sites import MOST, draw_sites
from protofed.analysis.report.page import PageFigure, environment
from protofed.analysis.table import TextCell, TextTable
from protofed.apps.folder.notice import Notice
from protofed.apps.folder.trying import Arm, FolderTrial, difference
from protofed.storage.files import write_text


def write_trial(trial: FolderTrial, notices: Sequence[Notice]) -> None:
    """Write one self-contained page.

    Raises:
        OutputError: If it cannot be written.
    """
    from markupsafe import Markup

    told = "Accuracy of each site on its own test samples, alone and together, by the same closed form."
    together, alone = trial.arms[:2]
    both = {site: (100 * alone.mean(site)[0], 100 * together.mean(site)[0]) for site in trial.sites}
    drawn = draw_sites(both, "alone", "together") if len(both) <= MOST else None
    plot = PageFigure(Markup(inline_svg(drawn, "t", told)) if drawn else None, "too many sites")
    settled = [f for f in notices if f.proposal and not f.open]
    template = environment("protofed.apps.folder").get_template("try.html")
    write_text(
        trial.page, template.render(trial=trial, gains=_gains(trial), arms=_arms(trial), plot=plot, settled=settled)
    )


def _gains(trial: FolderTrial) -> TextTable:
    """Return one row per site: the closed form alone and together."""
    table = TextTable(["Site", "Test", "Alone", "Together", "Gain"])
    for site in ("", *trial.sites):
        hits = trial.arms[0].hits
        tested = sum(len(hits[name][0]) for name in ([site] if site else hits))
        mean, low, high = trial.gain(site)
        gain = TextCell(f"{100 * mean:+.1f}", f"{100 * low:+.1f} … {100 * high:+.1f}", strong=not low <= 0 <= high)
        alone, together = (_percent(arm, site).text for arm in (trial.arms[1], trial.arms[0]))
        table.add(site or "all", f"{tested:,}", alone, together, gain)
    return table


def _arms(trial: FolderTrial) -> TextTable:
    """Return one row per way of learning: all sites, the difference from the closed form together, each site."""
    few = trial.sites[:12]
    table = TextTable(["Way of learning", "All sites", f"{trial.arms[0].name} gains over it", *few])
    for arm in sorted(trial.arms, key=lambda arm: -arm.mean()[0]):
        mean, low, high = (100 * value for value in difference(trial.arms[0], arm))
        gain = TextCell("–") if arm is trial.arms[0] else TextCell(f"{mean:+.1f}", f"{low:+.1f} … {high:+.1f}")
        table.add(arm.title, _percent(arm), gain, *(_percent(arm, site) for site in few))
    return table


def _percent(arm: Arm, site: str = "") -> TextCell:
    mean, low, high = (100 * value for value in arm.mean(site))
    return TextCell(f"{mean:.1f}", f"{low:.1f} … {high:.1f}")
