"""Putting the page together."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from protofed.analysis import differing, grid
from protofed.analysis.answer import answer, answer_table
from protofed.analysis.report import comparison, facts, metrics, tables
from protofed.errors import CheckpointError, DataError
from protofed.runs.labels import flat
from protofed.runs.loading import axes_of, load_runs
from protofed.runs.run import Run, by_label, rules_of

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


def write_report(paths: Sequence[Path], out: Path, left_out: list[CheckpointError] | None = None) -> Path:
    """Write one self-contained HTML page about all runs at ``paths``.

    Args:
        paths: Run directories, comparison directories, or folders with either inside.
        out: Replaced whole.
        left_out: Takes the errors of damaged runs in folders, which the page then names; None raises them.

    Raises:
        CheckpointError: If a path holds no run, or a file of a run is missing or damaged.
    """
    from protofed.storage.files import write_text

    out = Path(out)
    runs = load_runs([Path(path) for path in paths], left_out)
    axes = axes_of(paths[0]) if len(paths) == 1 else {}
    if axes:
        rows = grid.rows_of(runs, axes)
        write_text(out.with_name("grid.csv"), grid.frame(rows, axes).to_csv(index=False, float_format="%.2f"))
        template = environment().get_template("grid.html")
        told = {"axes": list(axes), "grid": grid.table(rows, axes), "plots": _along(axes, runs)}
        write_text(out, template.render(runs=runs, facts=facts, differing=differing, **told))
    else:
        write_text(out, render(runs, [str(error) for error in left_out or ()]))
    return out


def _along(axes: Mapping[str, Sequence[str]], runs: list[Run]) -> list[PageFigure]:
    """Return the figure of a comparison along one option."""
    (option, *others) = axes
    if others or not any(option in flat(run.config) for run in runs):
        return []
    plot = Plots().draw("sensitivity", runs, option=option)
    return [plot] if plot.svg else []


def render(runs: Sequence[Run], left_out: Sequence[str] = ()) -> str:
    """Return the page: about one run, or a comparison of several, and why others were ``left_out``."""
    template = environment().get_template("report.html")
    return template.render(
        runs=list(runs),
        groups=by_label(runs),
        answer=answer(runs),
        short=answer_table,
        plot=Plots().draw,
        tables=tables,
        comparison=comparison,
        facts=facts,
        differing=differing,
        metric_tables=metrics,
        rules_of=rules_of,
        single=len(runs) == 1,
        left_out=left_out,
    )


@functools.cache
def environment(application: str = "protofed.analysis") -> Environment:
    """Return the compiled templates of an application's package and of reports."""
    import jinja2

    packages = dict.fromkeys((application, "protofed.analysis"))
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package) for package in packages]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


class PageFigure(NamedTuple):
    """A figure of the page."""

    svg: Markup | None
    missing: str = ""


class Plots:
    """Draws the figures of one page, each with ids of its own."""

    def __init__(self) -> None:
        self.count = 0

    def draw(self, name: str, runs: list[Run], **options: Any) -> PageFigure:
        """Draw the registered figure ``name``."""
        from markupsafe import Markup

        from protofed.analysis.figures import figures, inline_svg

        draw = figures.get(name)
        try:
            fig = draw(runs, **options)
        except (CheckpointError, DataError) as error:
            return PageFigure(None, str(error))
        self.count += 1
        methods = ", ".join(by_label(runs))
        summary = (draw.__doc__ or name).strip().splitlines()[0]
        return PageFigure(Markup(inline_svg(fig, f"f{self.count}", f"{summary} Shown: {methods}.")))
