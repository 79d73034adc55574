"""Claims, tested by differences between runs that share a seed, and so the split."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from protofed.trained.paired import POINT
from protofed_papers.cells import figure_cells
from protofed_papers.layout import Entry, Find, Scope, Sheet, measured
from protofed_papers.papers import ACCURACY, Claim, Paper, papers
from protofed_papers.verdicts import CONTRADICTED, UNTESTABLE, Contrast, Judgement, judge


class Side(dict[int, float]):
    """Values of one side of a comparison by seed, with the keys of the runs behind them, and their rule."""

    def __init__(self, values: Mapping[int, float], runs: dict[int, str], rule: str) -> None:
        super().__init__(values)
        self.runs, self.rule = runs, rule


class Difference(dict[int, float]):
    """Differences by seed, with both sides or the only one."""

    sides: tuple[Side, ...] = ()


Cells = dict[str, list[Difference]]  #: For every cell of every comparison


def judged(paper: Paper, claim: Claim, scope: Scope, find: Find) -> Judgement:
    """Return the verdict on a claim.

    Methods without the rule of the scope are scored by the paper's.
    """
    if claim.counterexample:
        return Judgement(CONTRADICTED, (), claim.counterexample)
    scopes = [replace(scope, rule=claim.rule or scope.rule)]
    scopes += [replace(scope, rule="")] if scope.rule and not claim.rule else []
    cells = (_from_figure if claim.table is None else _from_tables)(paper, claim, scopes, find)
    if claim.need == "most":
        cells = {f"{_words(_read_wanted(claim.a))} against all {len(cells)}": [*chain(*cells.values())]}
    kind = "every" if claim.every or "traffic" in claim.metric else "alike" if claim.better == "equal" else "order"
    ordered = kind == "order" and (claim.metric != "accuracy" or claim.margin or claim.factor != 1)
    margin = 0.0 if ordered else POINT
    comparisons = [Contrast(what, own, kind, margin) for what, own in cells.items()]
    if scope.scale == "smoke" and any(c.differences for c in comparisons):
        return Judgement(UNTESTABLE, tuple(comparisons), "the scale smoke runs other data for two rounds")
    return judge(comparisons)


def verdicts(scope: Scope, find: Find) -> dict[str, str]:
    """Return the verdict on every claim of every paper, by the paper's rule and its code's, with its basis."""
    found: dict[str, str] = {}
    for paper in papers().values():
        for claim in paper.claims:
            for rule in rules_of(paper, claim):
                own = judged(paper, claim, replace(scope, rule=rule), find)
                name = f"{paper.name}/claim{claim.number}{' as coded' if rule else ''}"
                found[name] = f"{own.verdict} ({own.tally})" if own.tally else own.verdict
    return found


def rules_of(paper: Paper, claim: Claim) -> list[str]:
    """Return the rules by which a claim is judged: the paper's, as ``""``, and that of its code."""
    both = paper.coded and claim.metric == "accuracy" and not claim.rule and not claim.counterexample
    return ["", paper.coded] if both else [""]


def _difference(claim: Claim, a: Side, b: Side | None) -> Difference:
    """Return ``a - factor · b - margin`` of the seeds that both have, positive on the claimed side."""
    sign = -1 if claim.better == "lower" else 1
    seeds = [seed for seed in a if b is None or seed in b]
    found = {s: sign * (a[s] - (0.0 if b is None else claim.factor * b[s]) - claim.margin) for s in seeds}
    difference = Difference(found)
    difference.sides = (a,) if b is None else (a, b)
    return difference


def _read_wanted(part: Any) -> dict[str, str]:
    """Return a claim's side as settings with the method among them."""
    return {"method": part} if isinstance(part, str) else dict(part)


def _numbers(sheet: Sheet) -> list[tuple[dict[str, str], Entry]]:
    """Return the accuracies of a table with their settings and method."""
    return [
        ({"method": row.method, **(entry.printed.settings if entry.printed else dict(entry.runs[0][0]))}, entry)
        for (row, _), entry in sheet.layout.entries.items()
        if entry.metric == ACCURACY
    ]


def _from_tables(paper: Paper, claim: Claim, scopes: Sequence[Scope], find: Find) -> Cells:
    """Pair the numbers of one side with those of the other that differ from them in nothing else."""
    sheets = [Sheet(paper, paper.table(claim.table), scope, find) for scope in scopes]  # type: ignore[arg-type]
    others = sheets
    if claim.other is not None:
        others = [Sheet(paper, paper.table(claim.other), scope, find) for scope in scopes]

    def values(sheets: Sequence[Sheet], entry: Entry) -> Side:
        for sheet in sheets:
            if found := sheet.values(entry, claim.metric):
                runs = {seed: "+".join(e.key for e in sheet.experiments(entry, seed)) for seed in found}
                return Side(found, runs, sheet.scope.rule)
        return Side({}, {}, "")

    found: Cells = {}
    for a in [claim.a, *([claim.also] if claim.also else [])]:
        left = _read_wanted(a)
        for settings, entry in _numbers(sheets[0]):
            if any(settings.get(n) != v for n, v in {**left, **claim.over}.items()):
                continue
            name = _words({"method": settings["method"], **left})
            own = values(sheets, entry)
            if not claim.b:
                found.setdefault(name, []).append(_difference(claim, own, None))
            for part in claim.b:
                right = _read_wanted(part)
                free = {*left, *right, *_of_methods(paper)}
                for other, against in _numbers(others[0]):
                    same = all(other.get(n) == v for n, v in settings.items() if n not in free)
                    if same and all(other.get(n) == v for n, v in right.items()):
                        difference = _difference(claim, own, values(others, against))
                        found.setdefault(f"{name} against {_words(right)}", []).append(difference)
    return found


def _of_methods(paper: Paper) -> set[str]:
    """Return the settings that belong to single methods, such as γ, and say nothing of the federation."""
    options = paper.options
    return {
        name
        for name in (*options, *paper.translate)
        if str(options.get(name)).startswith("method.") or isinstance(options.get(name), Mapping)
    } | {"models"}


def _words(side: Mapping[str, Any]) -> str:
    return ", ".join(str(v) if n == "method" else f"{n}={v}" for n, v in side.items())


def _from_figure(paper: Paper, claim: Claim, scopes: Sequence[Scope], find: Find) -> Cells:
    """Compare runs of a figure that have one value of an option, or one method, with others."""
    figure, scope = paper.figure(claim.figure), scopes[0]
    runs = {seed: figure_cells(paper, figure, seed, scope.scale, scope.overrides) for seed in scope.seeds}

    def side(part: Any, others: Mapping[str, Any]) -> Side:
        found = Side({}, {}, scope.rule)
        for seed, cells in runs.items():
            for given, experiment in cells:
                if any(given.get(name) != value for name, value in {**_chosen(part), **others}.items()):
                    continue
                result = find(experiment.key)
                for rule in [scope.rule for scope in scopes] if result else []:
                    value = measured(paper, result, claim.metric, rule)  # type: ignore[arg-type]
                    if value is not None:
                        found[seed], found.runs[seed], found.rule = value, experiment.key, rule
                        break
        return found

    methods = [m for m in figure.methods if not isinstance(claim.a, str)] or [""]
    places: list[dict[str, Any]] = [{"method": m} if m else {} for m in methods]
    if isinstance(claim.a, str):
        places = [{name: value} for name, values in figure.vary.items() for value in values] or [{}]
    places = [place for place in places if all(claim.over.get(n, v) == v for n, v in place.items())]
    return {
        _words(_chosen(claim.a)) + (f" against {_words(_chosen(part))}" if part else ""): [
            _difference(claim, side(claim.a, place), side(part, place) if part else None) for place in places
        ]
        for part in claim.b or [None]
    }


def _chosen(part: Any) -> dict[str, Any]:
    return {"method": part} if isinstance(part, str) else {part["option"]: part["value"]}
