"""Claims, tested by paired differences over seeds on the same splits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protofed.reproduction.cells import figure_cells
from protofed.reproduction.layout import Entry, Find, Scope, Sheet, measured
from protofed.reproduction.papers import ACCURACY, Claim, Paper, Printed, papers
from protofed.reproduction.verdicts import UNTESTABLE, Comparison, Judgement, judge


def judged(paper: Paper, claim: Claim, scope: Scope, find: Find) -> Judgement:
    """Return the verdict on a claim.

    Args:
        paper: The paper.
        claim: The claim.
        scope: What was run.
        find: Returns a result by the key of its configuration.
    """
    if claim.untestable:
        return Judgement(UNTESTABLE, (), claim.untestable)
    if claim.table is not None:
        sheet = Sheet(paper, paper.table(claim.table), scope, find)
        other = sheet if claim.other is None else Sheet(paper, paper.table(claim.other), scope, find)
        comparisons = _from_tables(paper, claim, sheet, other)
    else:
        comparisons = _from_figure(paper, claim, scope, find)
    if scope.scale == "smoke" and any(c.differences for c in comparisons):
        return Judgement(UNTESTABLE, tuple(comparisons), "the scale smoke runs other data for two rounds")
    return judge(comparisons, claim.need)


def verdicts(scope: Scope, find: Find) -> dict[str, str]:
    """Return the verdict on every claim of every paper, with the counts behind it.

    Args:
        scope: What was run.
        find: Returns a result by the key of its configuration.
    """
    found: dict[str, str] = {}
    for paper in papers().values():
        for claim in paper.claims:
            own = judged(paper, claim, scope, find)
            found[f"{paper.name}/claim{claim.number}"] = (
                f"{own.verdict} ({own.tally})" if own.tally else own.verdict
            )
    return found


def _difference(claim: Claim, a: Mapping[int, float], b: Mapping[int, float] | None) -> tuple[float, ...]:
    """Return ``a - factor · b - margin`` of the seeds that both have, positive on the claimed side."""
    sign = 1 if claim.better == "higher" else -1
    seeds = [seed for seed in a if b is None or seed in b]
    return tuple(sign * (a[s] - (0.0 if b is None else claim.factor * b[s]) - claim.margin) for s in seeds)


def _wanted(part: Any) -> dict[str, str]:
    """Return a claim's side as settings with the method among them."""
    return {"method": part} if isinstance(part, str) else dict(part)


def _numbers(sheet: Sheet) -> list[tuple[dict[str, str], Entry]]:
    """Return the accuracies of a table with their settings and method."""
    return [
        ({"method": row.method, **_settings(entry.printed, entry.runs)}, entry)
        for (row, _), entry in sheet.layout.entries.items()
        if entry.metric == ACCURACY
    ]


def _from_tables(paper: Paper, claim: Claim, sheet: Sheet, others: Sheet) -> list[Comparison]:
    """Pair the numbers of one side with those of the other that differ from them in nothing else."""
    found = []
    for a in [claim.a, *([claim.also] if claim.also else [])]:
        left = _wanted(a)
        for settings, entry in _numbers(sheet):
            if any(settings.get(n) != v for n, v in {**left, **claim.over}.items()):
                continue
            values = sheet.values(entry, claim.metric)
            if not claim.b:
                own = _difference(claim, values, None)
                found.append(Comparison(_named(settings, left), own, claim.every))
            for part in claim.b:
                right = _wanted(part)
                free = {"method", *left, *right, *_of_methods(paper)}
                for other, against in _numbers(others):
                    same = all(other.get(n) == v for n, v in settings.items() if n not in free)
                    if same and all(other.get(n) == v for n, v in right.items()):
                        difference = _difference(claim, values, others.values(against, claim.metric))
                        found.append(Comparison(f"{_named(settings, left)} against {_words(right)}", difference))
    return found


def _settings(printed: Printed | None, runs: Any) -> dict[str, str]:
    return dict(printed.settings) if printed else dict(runs[0][0])


def _of_methods(paper: Paper) -> set[str]:
    """Return the settings that belong to single methods, such as γ, and say nothing of the federation."""
    options = paper.options
    return {
        name
        for name in (*options, *paper.translate)
        if str(options.get(name)).startswith("method.") or isinstance(options.get(name), Mapping)
    } | {"models"}


def _named(settings: Mapping[str, str], left: Mapping[str, str]) -> str:
    where = [f"{n}={v}" for n, v in settings.items() if n not in left and n != "method"]
    return f"{_words(left)} ({', '.join(where)})" if where else _words(left)


def _words(side: Mapping[str, Any]) -> str:
    return ", ".join(str(v) if n == "method" else f"{n}={v}" for n, v in side.items())


def _from_figure(paper: Paper, claim: Claim, scope: Scope, find: Find) -> list[Comparison]:
    """Compare runs of a figure that have one value of an option, or one method, with others."""
    figure = paper.figure(claim.figure)
    runs = {seed: figure_cells(paper, figure, seed, scope.scale, scope.overrides) for seed in scope.seeds}

    def side(part: Any, others: Mapping[str, Any]) -> dict[int, float]:
        wanted = {"method": part} if isinstance(part, str) else {part["option"]: part["value"]}
        found = {}
        for seed, cells in runs.items():
            for given, experiment in cells:
                if any(given.get(name) != value for name, value in {**wanted, **others}.items()):
                    continue
                result = find(experiment.key)
                value = measured(paper, result, claim.metric, scope.rule) if result else None
                if value is not None:
                    found[seed] = value
        return found

    methods = [m for m in figure.methods if not isinstance(claim.a, str)] or [""]
    places: list[dict[str, Any]] = [{"method": m} if m else {} for m in methods]
    if isinstance(claim.a, str):
        places = [{name: value} for name, values in figure.vary.items() for value in values] or [{}]
    return [
        Comparison(
            f"{_option(claim.a)} against {_option(part)}" + "".join(f", {n}={v}" for n, v in place.items()),
            _difference(claim, side(claim.a, place), side(part, place)),
        )
        for place in places
        for part in claim.b
    ]


def _option(part: Any) -> str:
    return part if isinstance(part, str) else f"{part['option']}={part['value']}"
