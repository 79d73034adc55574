"""The one model of tables: cells of text, which the report, the terminal and files write in their own ways."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from protofed.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import RenderableType

    from protofed.analysis.style import LineStyle


class TextCell(NamedTuple):
    """One entry: its text, a smaller note below, emphasis, and a sample of a line for a legend."""

    text: str
    note: str = ""
    strong: bool = False
    style: LineStyle | None = None


@dataclass
class TextTable:
    """A table."""

    head: list[str]
    rows: list[list[TextCell]] = field(default_factory=list)
    text_columns: int = 1  #: How many leading columns hold words; the others hold numbers
    #: Headings above the columns, each with the number of columns it spans
    groups: list[tuple[str, int]] = field(default_factory=list)
    sections: dict[int, str] = field(default_factory=dict)  #: Headings above rows, by the row they precede
    title: str = ""
    caption: str = ""
    by: str = "section"  #: What the sections are, for files with a column of them

    def add(self, *cells: str | TextCell) -> None:
        """Append a row."""
        self.rows.append([cell if isinstance(cell, TextCell) else TextCell(cell) for cell in cells])

    def lines(self) -> Iterator[tuple[str, list[TextCell]]]:
        """Yield every row after the heading of the section that it begins, or ``""``."""
        for place, row in enumerate(self.rows):
            yield self.sections.get(place, ""), row

    def names(self, between: str = ": ") -> list[str]:
        """Return the headings of the columns, after those above them."""
        groups = [name for name, span in self.groups for _ in range(span)] or [""] * len(self.head)
        return [f"{g}{between}{name}" if g else name for g, name in zip(groups, self.head, strict=True)]

    def frame(self) -> DataFrame:
        """Return the texts of the cells, with the sections in a first column if there are any."""
        from pandas import DataFrame

        found, section = [], ""
        for heading, row in self.lines():
            section = heading or section
            found.append([*([section] if self.sections else []), *(cell.text for cell in row)])
        return DataFrame(found, columns=[*([self.by] if self.sections else []), *self.names()])

    def markdown(self) -> str:
        """Return the table as Markdown."""
        frame = self.frame()
        rows = [list(frame.columns), *frame.to_numpy().tolist()]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]]) + "\n"

    def latex(self) -> str:
        """Return the table as a ``tabular`` of LaTeX, for the package ``booktabs``."""
        words, width = self.text_columns, len(self.head)
        lines = [rf"\begin{{tabular}}{{{'l' * words}{'r' * (width - words)}}}", r"\toprule"]
        lines += [_latex_row(self.names()), r"\midrule"]
        for place, (heading, row) in enumerate(self.lines()):
            if heading:
                lines += [r"\midrule"] * (place > 0)
                lines.append(rf"\multicolumn{{{width}}}{{l}}{{{tex(heading)}}} \\")
            lines.append(_latex_row([cell.text for cell in row], [cell.strong for cell in row]))
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def __rich__(self) -> RenderableType:
        """Return the table for a terminal: notes below, emphasised cells red."""
        from rich import box
        from rich.console import Group
        from rich.markup import escape
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE, padding=0, show_edge=False)
        for place, name in enumerate(self.names("\n")):
            if place < self.text_columns:
                table.add_column(escape(name), no_wrap=True)
            else:  # on a narrow screen names may lose their ends, but numbers must not
                table.add_column(escape(name), justify="right", no_wrap=True, min_width=8)
        for heading, row in self.lines():
            if heading:
                table.add_section()
                table.add_row(f"[dim]{escape(heading)}[/]")
            table.add_row(*map(_format_value, row))
        above = [Text(self.title, "italic")] if self.title else []
        return Group(*above, table, *([Text(self.caption, "dim italic")] if self.caption else []))


def _format_value(cell: TextCell) -> str:
    from rich.markup import escape

    text = f"[red]{escape(cell.text)}[/]" if cell.strong else escape(cell.text)
    return f"{text}\n[dim]{escape(cell.note)}[/]" if cell.note else text


def _latex_row(texts: Sequence[str], strong: Sequence[bool] = ()) -> str:
    cells = zip(map(tex, texts), [*strong, *[False] * len(texts)], strict=False)
    return " & ".join(rf"\textbf{{{text}}}" if bold else text for text, bold in cells) + r" \\"


_GREEK = "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi pi rho sigma tau phi chi psi omega"
_TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "–": "--",
    "−": "$-$",
    "“": "``",
    "”": "''",
    "…": r"\ldots{}",
}
_TEX |= {c: rf"$\{name}$" for c, name in zip("αβγδεζηθκλμνξπρστφχψω", _GREEK.split(), strict=True)}
_TEX |= {"±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "≤": r"$\leq$", "w̄": r"$\bar{w}$", "ŝ": r"$\hat{s}$"}


def tex(text: str) -> str:
    r"""Return a text with everything escaped that LaTeX takes for a command.

    Example:
        >>> print(tex("5 % of n_i"))
        5 \% of n\_i
    """
    return re.sub("|".join(re.escape(c) for c in sorted(_TEX, key=len, reverse=True)), lambda m: _TEX[m[0]], text)


FORMATS = ("csv", "markdown", "latex")


def check_format(form: str) -> str:
    """Return the name of a format, if it is one of :data:`FORMATS`."""
    if form not in FORMATS:
        raise ConfigError(unknown_name("format", form, FORMATS))
    return form


def format_table(frame: DataFrame, form: str) -> str:
    """Return the frame of a comparison as text in one of :data:`FORMATS`: as it is, or a :func:`paper_table`."""
    if check_format(form) == "csv":
        return str(frame.to_csv(index=False))
    if form == "latex":
        return paper_table(frame).latex()
    from pandas.api.types import is_numeric_dtype

    words = [not is_numeric_dtype(kind) for kind in frame.dtypes]
    table = TextTable(list(map(str, frame.columns)), text_columns=[*words, False].index(False))
    for row in frame.itertuples(index=False):
        table.add(*map(_format_frame, row))
    return table.markdown()


_PAPER = {"final": "Accuracy", "client_mean": "Mean of clients", "union": "All samples", "unseen": "Unseen"}
"""Columns of a comparison's frame that a paper's table shows, with their names there; all in percent."""


def paper_table(frame: DataFrame) -> TextTable:
    """Return mean ± standard deviation over seeds, by each method's main rule, the best of every column in bold.

    Args:
        frame: As :meth:`protofed.experiments.Comparison.to_frame` returns it; the best is among the same values of
            its axes.
    """
    names = list(frame.columns)
    keys, main = names[: names.index("seed")], frame[frame["main"]]
    metrics = [name for name in _PAPER if main[name].notna().any()]
    groups = main.groupby(keys, sort=False, dropna=False)[metrics]
    means, stds, runs = groups.mean(), groups.std(), groups.size()
    rounded = means.round(1)
    best = rounded.groupby(keys[1:], dropna=False).transform("max") if keys[1:] else rounded.max()
    table = TextTable([*(key.capitalize() for key in keys), *(_PAPER[m] for m in metrics)], text_columns=len(keys))
    for place, key in enumerate(means.index):
        cells = []
        for metric in metrics:
            mean, std = means[metric].iloc[place], stds[metric].iloc[place]
            spread = f" ± {std:.1f}" if runs.iloc[place] > 1 and std == std else ""
            text = f"{mean:.1f}{spread}" if mean == mean else "–"
            top = best[metric].iloc[place] if keys[1:] else best[metric]
            cells.append(TextCell(text, strong=bool(len(means) > 1 and rounded[metric].iloc[place] == top)))
        table.add(*map(str, key if isinstance(key, tuple) else (key,)), *cells)
    return table


def _format_frame(value: object) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
