"""Reproduced tables as sections of an HTML report."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from protofed.analysis.report.page import environment
from protofed.analysis.table import TextCell, TextTable
from protofed.storage.files import write_text
from protofed.text import number as counted
from protofed_papers.layout import Filled, Scope, formulas, hyperparameters
from protofed_papers.output import cell_lines, facts_of, table_of, title_of
from protofed_papers.running import Reproduced


def write_page(path: Path, found: Reproduced, scope: Scope, command: str) -> Path:
    """Write one self-contained page with a section per table, figure and claim."""
    sections: list[dict[str, Any]] = [
        {"title": title_of(s.paper, s.table), "table": table_of(s, _cell), "lines": facts_of(s, command).lines()}
        for s in found.sheets
    ]
    for paper, table in found.others:
        if table.kind == "formulas":
            own = TextTable(["Method", "Formula", "Expected", "Counted", "Verdict"], text_columns=2)
            for line in formulas(paper, table, scope, found.find):
                own.add(line.method, line.text, counted(line.expected), counted(line.counted), line.verdict)
            sections.append({"title": title_of(paper, table), "table": own, "lines": []})
            continue
        own = TextTable(["Method", "Name", "Data set", "Paper", "Ours", "Verdict"], text_columns=3)
        for row in hyperparameters(paper.name, table.number):
            own.add(row.method, row.name, row.column, row.printed, row.ours or "none", row.verdict)
        sections.append({"title": title_of(paper, table), "table": own, "lines": []})
    figures = [
        {
            "title": f"{paper.name}/figure{figure.number}: {figure.caption}",
            "picture": base64.b64encode(paths[0].read_bytes()).decode() if paths else "",
            "why": why,
        }
        for paper, figure, paths, why in found.figures
    ]
    claims = TextTable(["Number", "Claim", "Verdict", "Comparisons"], text_columns=4)
    for paper, claim, judgement in found.claims:
        name = f"{paper.name}/claim{claim.number}"
        verdict = scope.shown(judgement.verdict)
        claims.add(name, TextCell(claim.text, claim.origin), verdict, judgement.why or judgement.tally)
    template = environment("protofed_papers").get_template("reproduction.html")
    text = template.render(sections=sections, figures=figures, claims=claims, command=command)
    write_text(path, text)
    return path


def _cell(filled: Filled | None) -> TextCell:
    printed, ours, half, verdict = cell_lines(filled)
    note = ", ".join(part for part in (f"paper {printed}" if printed else "", verdict) if part)
    return TextCell(f"{ours} {half}".strip(), note)
