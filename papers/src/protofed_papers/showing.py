"""Requests and output of ``protofed reproduce``."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from protofed.config.schema import check_number
from protofed.errors import ConfigError, unknown_name
from protofed.experiments.batch import claim
from protofed.runs.rules import KNOWN_RULES
from protofed.storage.files import write_text
from protofed_papers.cells import SCALES
from protofed_papers.judging import judged
from protofed_papers.layout import Scope, Sheet, formulas, hyperparameters
from protofed_papers.output import (
    WIDTH,
    as_markdown,
    as_text,
    claim_lines,
    facts_of,
    formula_lines,
    hyperparameter_lines,
)
from protofed_papers.papers import papers
from protofed_papers.running import Reproduced, Reproduction, ResultLibrary

Write = Callable[[str], None]


def listing(scope: Scope, out: Path) -> list[str]:
    """Return all papers with the state of their tables, figures and claims."""
    find = ResultLibrary(out).find
    seeds = ", ".join(map(str, scope.seeds))
    lines = textwrap.wrap(f"Scale {scope.scale}, seeds {seeds}; results in {out} and in the library.", WIDTH)
    for paper in papers().values():
        lines += ["", *textwrap.wrap(f"{paper.name}: {paper.title} ({paper.reference})", WIDTH)]
        for table in paper.tables:
            lines += _entry(f"{paper.name}/table{table.number}", _state(paper, table, scope, find), table.caption)
        for figure in paper.figures:
            drawn = (out / "figures" / f"{paper.name}-figure{figure.number}-{scope.scale}.png").is_file()
            state = "drawn" if drawn else "not run"
            lines += _entry(f"{paper.name}/figure{figure.number}", state, figure.caption)
        for own in paper.claims:
            judgement = judged(paper, own, scope, find)
            lines += _entry(f"{paper.name}/claim{own.number}", scope.shown(judgement.verdict), own.text)
    return lines


def _state(paper: Any, table: Any, scope: Scope, find: Any) -> str:
    if table.kind == "hyperparameters":
        differ = sum(row.verdict != "agrees" for row in hyperparameters(paper.name, table.number))
        return f"{differ} differ" if differ else "agrees"
    if table.kind == "formulas":
        own = formulas(paper, table, scope, find)
        return f"{sum(f.counted is not None for f in own)} of {len(own)} counted"
    states = Counter(find(own) is not None for own in Sheet(paper, table, scope, find).all_keys())
    return "not run" if not states[True] else f"{states[True]} of {states.total()} runs"


def _entry(name: str, state: str, text: str) -> list[str]:
    first, *rest = textwrap.wrap(text, WIDTH - 40) or [""]
    return [f"  {name:<20} {state:<16} {first}", *(" " * 40 + line for line in rest)]


def scope(scale: str, seeds: Sequence[int], overrides: Mapping[str, Any], rule: str = "") -> Scope:
    """Return the scope of a request."""
    if scale not in SCALES:
        raise ConfigError(unknown_name("scale", scale, SCALES))
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError("--seeds must name different seeds")
    for seed in seeds:
        check_number("seed", seed)
    if rule and rule not in KNOWN_RULES:
        raise ConfigError(f"--rule: {unknown_name('rule', rule, KNOWN_RULES)}")
    return Scope(scale, tuple(seeds), overrides, rule)


def only(items: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the settings to keep, from texts such as ``dataset=mnist,cifar10``."""
    found: dict[str, tuple[str, ...]] = {}
    for item in items:
        name, _, values = item.partition("=")
        if not name or not all(values.split(",")):
            raise ConfigError(f"--only {item!r} is not NAME=VALUE, e.g. dataset=mnist")
        found[name] = (*found.get(name, ()), *values.split(","))
    return found


def show(found: Reproduced, request: Reproduction, write: Write) -> None:
    """Write the files of what was reproduced and print it."""
    claim(request.out)
    for name, why in found.missing.items():
        columns = sorted({" ".join(c) for s in found.sheets for c in s.columns_of(name)})
        about = f" (missing columns: {', '.join(columns)})" if columns else ""
        write(f"not at hand: {name}{about}: {why}")
    for label, why in found.failed.items():
        write(f"failed: {label}: {why}")
    command = " ".join(["protofed", *map(shlex.quote, sys.argv[1:])])
    folder = request.out / "tables"
    for sheet in found.sheets:
        facts = facts_of(sheet, command)
        stem = f"{sheet.paper.name}-table{sheet.table.number}-{sheet.scope.scale}"
        write_text(folder / f"{stem}.md", as_markdown(sheet, facts))
        write(as_text(sheet, facts))
    for paper, table in found.others:
        if table.kind == "formulas":
            lines = formula_lines(paper, table, formulas(paper, table, request.scope, found.find))
        else:
            lines = hyperparameter_lines(paper, table)
        write("\n".join(lines) + "\n")
    for paper, figure, paths, why in found.figures:
        place = ", ".join(map(str, paths)) or why
        write(f"{paper.name}/figure{figure.number}: {place}")
    details = "/claim" in request.target
    for paper, own, judgement in found.claims:
        write("\n".join(claim_lines(paper, own, judgement, request.scope, details=details)))
    if found.waiting:
        write(f"Time is up: {found.waiting} runs are not finished; repeat the command to go on.")
    if found.sheets:
        write(f"Tables as Markdown: {folder}")
