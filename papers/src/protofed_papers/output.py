"""Reproduced tables and claims as text and Markdown, with how they were made."""

from __future__ import annotations

import hashlib
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from protofed.analysis.table import TextCell, TextTable
from protofed.text import plural
from protofed_papers.layout import Filled, Formula, Hyperparameter, Row, Scope, Sheet, hyperparameters
from protofed_papers.papers import ACCURACY, Claim, Paper, PaperTable
from protofed_papers.verdicts import NOT_RUN, Judgement

WIDTH = 80
SHORT = {
    "pathological": "pathol.",
    "tinyimagenet": "Tiny IN",
    "flowers102": "Flowers",
    "cifar100": "CIFAR-100",
    "cifar10": "CIFAR-10",
    "mnist": "MNIST",
    "femnist": "FEMNIST",
    "params_thousands": "params k",
    "params_millions": "params M",
}
SYMBOLS = {
    "alpha": "α",
    "clients": "M",
    "gamma": "γ",
    "w_bar": "w̄",
    "s_hat": "ŝ",
    "stdev_n": "stdev n",
    "d": "d",
    "n": "n",
    "s": "s",
    "scaling": "scaling",
}
CELLS = (
    "In each cell: the paper's value; ours, mean over seeds; ± half of the 95 % t interval over seeds; the "
    "verdict. Brackets: not at the paper's scale, so that nothing follows from the difference."
)


class Facts(NamedTuple):
    """The making of a table: command, hashes, versions and hardware."""

    command: str
    configurations: str
    splits: str
    made: str
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """Return the facts as lines of text."""
        return [
            f"Command: {self.command}",
            f"Configurations: {self.configurations}; splits: {self.splits}",
            f"Made by: {self.made}",
            *self.notes,
        ]


def facts_of(sheet: Sheet, command: str) -> Facts:
    """Describe how ``command`` made a table."""
    results = [r for r in sheet.results() if r.done]
    expected = sum(1 for _ in sheet.all())
    scale = sheet.scope.scale
    images = sorted({r.images for r in results})
    counts = " to ".join(f"{n:,}" for n in dict.fromkeys((images[0], images[-1]))) if images else ""
    notes = [
        f"{len(results)} of {expected} runs at scale {scale}, seeds {', '.join(map(str, sheet.scope.seeds))}"
        + (f", {counts} images" if counts else "")
        + ".",
        f"Accuracy: {sheet.paper.metric}, {sheet.paper.metric_why}.",
        f"By rule {sheet.scope.rule}, which is not the paper's." if sheet.scope.rule else "",
        sheet.moved(),
        *(f"Not at hand: {why}" for why in sheet.missing.values()),
    ]
    return Facts(
        command,
        _hash(r.key for r in results),
        f"{_hash(r.split for r in results)} ({plural(len({r.split for r in results}), 'split')})",
        "; ".join(sorted({r.made for r in results})) or "nothing was run",
        tuple(note for note in notes if note),
    )


def _hash(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(set(texts))).encode()).hexdigest()[:12]


def number(value: float | None, metric: str = ACCURACY, digits: int | None = None) -> str:
    """Return a number as tables write it, with ``digits`` after the point or those of the metric."""
    if value is None:
        return NOT_RUN
    places = digits if digits is not None else 1 if metric in (ACCURACY, "rounds") else 2
    return f"{value:.{places}f}"


def _ours(filled: Filled) -> str:
    printed = filled.entry.printed
    digits = None
    if printed and filled.entry.metric not in (ACCURACY, "rounds"):
        digits = len(printed.value.partition(".")[2])
    return number(filled.mean, filled.entry.metric, digits) if filled.values else filled.state


def _print_cell(filled: Filled) -> str:
    printed = filled.entry.printed
    if printed is None:
        return ""
    return f"<{printed.value}" if printed.bound else printed.value or "–"


def cell_lines(filled: Filled | None) -> list[str]:
    """Return the four lines of a cell."""
    if filled is None:
        return ["", "", "", ""]
    half = f"±{number(filled.half, filled.entry.metric)}" if filled.half else ""
    verdict = filled.verdict if filled.values or filled.verdict != filled.state else ""
    return [_print_cell(filled), _ours(filled), half, verdict]


def heading(sheet: Sheet, column: Sequence[str]) -> list[str]:
    """Return the lines of a column's heading, of its values and any metric other than accuracy."""
    names = [*sheet.table.columns, "metric"]
    if len(column) == 1 and column[0] in ("rounds", "params_thousands", "params_millions"):
        names = ["metric"]
    return [
        f"{SYMBOLS[name]} {value}" if name in SYMBOLS else SHORT.get(value, value)
        for name, value in zip(names, column, strict=False)
    ]


def row_labels(sheet: Sheet, row: Row) -> list[str]:
    """Return a row's method and what follows it."""
    inner = zip(sheet.table.inner, row.inner, strict=True)
    return [row.method, *(f"{SYMBOLS.get(n, n)} {v}" if n in SYMBOLS else v for n, v in inner if v)]


def section_label(sheet: Sheet, row: Row) -> str:
    """Return the heading above a row's section, or ``""``."""
    parts = zip(sheet.table.rows, row.section, strict=True)
    return ", ".join(f"{SYMBOLS[n]} {v}" if n in SYMBOLS else SHORT.get(v, v) for n, v in parts)


def title_of(paper: Paper, table: PaperTable) -> str:
    """Return the title of a table."""
    return f"{paper.name}/table{table.number}: {table.caption}"


def as_text(sheet: Sheet, facts: Facts) -> str:
    """Return a table in 80 columns."""
    columns = sheet.layout.columns
    label = max((len(part) for row in sheet.layout.rows for part in row_labels(sheet, row)), default=8)
    width = min(11, (WIDTH - label) // max(1, len(columns)))
    heads = [heading(sheet, column) for column in columns]
    lines = textwrap.wrap(title_of(sheet.paper, sheet.table), WIDTH)
    for i in range(max(map(len, heads))):
        parts = (_cut(head[i] if i < len(head) else "", width - 1) for head in heads)
        lines.append((" " * label + "".join(f"{part:>{width}}" for part in parts)).rstrip())
    lines.append("─" * (label + width * len(columns)))
    last = ""
    for row in sheet.layout.rows:
        if (section := section_label(sheet, row)) != last:
            lines += [section]
            last = section
        cells = [cell_lines(sheet.filled(row, column)) for column in columns]
        labels = [*row_labels(sheet, row), "", "", "", ""]
        for i in range(4):
            line = f"{labels[i]:<{label}}" + "".join(f"{_cut(cell[i], width - 1):>{width}}" for cell in cells)
            if line.strip():
                lines.append(line.rstrip())
    lines.append("")
    for line in (CELLS, *facts.lines()):
        lines += textwrap.wrap(line, WIDTH, break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _short(filled: Filled | None) -> str:
    """Return a cell in one line: printed / ours ± half verdict."""
    if filled is None:
        return ""
    printed, ours, half, verdict = cell_lines(filled)
    text = f"{printed} / {ours}" if printed else ours
    return f"{text}{' ± ' + half[1:] if half else ''}{' ' + verdict if verdict else ''}"


def table_of(sheet: Sheet, cell: Callable[[Filled | None], str | TextCell], *, known: bool = False) -> TextTable:
    """Return a table with a line per row; ``cell`` writes an entry, ``known`` leaves out rows without accuracy."""
    columns = sheet.layout.columns
    table = TextTable(["method", *(" ".join(heading(sheet, column)) for column in columns)], by="setting")
    last = ""
    for row, filled in shown_rows(sheet, known=known):
        if (section := section_label(sheet, row)) != last:
            last = table.sections[len(table.rows)] = section
        table.add(" ".join(row_labels(sheet, row)), *map(cell, filled))
    return table


def shown_rows(sheet: Sheet, *, known: bool) -> Iterator[tuple[Row, list[Filled | None]]]:
    """Yield the rows of a table, if ``known`` those with any accuracy of ours."""
    for row in sheet.layout.rows:
        filled = [sheet.filled(row, column) for column in sheet.layout.columns]
        if not known or any(own.values for own in filled if own and own.entry.metric == ACCURACY):
            yield row, filled


def as_markdown(sheet: Sheet, facts: Facts, *, known: bool = False) -> str:
    """Return a table as Markdown; ``known`` leaves out rows without any accuracy of ours."""
    title = f"**{title_of(sheet.paper, sheet.table)}** (paper / ours ± half of the 95 % interval, verdict)"
    notes = "".join(f"- {line}\n" for line in facts.lines())
    return f"{title}\n\n{table_of(sheet, _short, known=known).markdown()}\n{notes}"


def hyperparameter_lines(paper: Paper, table: PaperTable) -> list[str]:
    """Return a table of hyperparameters as text."""
    rows: Sequence[Hyperparameter] = hyperparameters(paper.name, table.number)
    lines = [f"{'method':<12}{'name':<16}{'data set':<14}{'paper':>8}{'ours':>10}  verdict"]
    for row in rows:
        ours = row.ours or "none"
        lines.append(f"{row.method:<12}{row.name:<16}{row.column:<14}{row.printed:>8}{ours:>10}  {row.verdict}")
    return [*textwrap.wrap(title_of(paper, table), WIDTH), *lines]


def formula_lines(paper: Paper, table: PaperTable, rows: Sequence[Formula]) -> list[str]:
    """Return a table of formulas as text."""
    lines = [f"{'method':<13}{'formula':<40}{'expected':>9}{'counted':>9}  verdict"]
    for row in rows:
        first, *rest = textwrap.wrap(row.text, 39)
        numbers = "".join(f"{'–' if n is None else f'{n:.3g}':>9}" for n in (row.expected, row.counted))
        lines.append(f"{row.method:<13}{first:<40}{numbers}  {row.verdict}")
        lines += [" " * 13 + line for line in rest]
    return [*textwrap.wrap(f"{title_of(paper, table)} (both directions, all clients)", WIDTH), *lines]


def claim_lines(
    paper: Paper, claim: Claim, judgement: Judgement, scope: Scope, *, details: bool = False
) -> list[str]:
    """Return a claim with its verdict as text."""
    head = f"{paper.name}/claim{claim.number}  {scope.shown(judgement.verdict)}, scale {scope.scale}"
    lines = [head, *textwrap.wrap(f"{claim.text} ({claim.origin})", WIDTH - 4)]
    lines += textwrap.wrap(judgement.why or judgement.tally, WIDTH - 4)
    if claim.note:
        lines += textwrap.wrap(claim.note, WIDTH - 4)
    if details and len(judgement.comparisons) > 1:
        for comparison in judgement.comparisons:
            lines += textwrap.wrap(comparison.text, WIDTH - 4)
    return [lines[0], *(f"    {line}" for line in lines[1:])]
