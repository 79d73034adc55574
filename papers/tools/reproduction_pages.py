"""What the docs say of the papers' tables and claims: ``papers/tools/reproduction_pages.py [--check]``.

Tables and claims with their verdicts in reproduction and in the baseline of hub/, and gains over controls
in the former's README.md, come from the results in ``papers/src/protofed_papers/results``, at the scales
and rounds of ``verdicts.json`` there. What lies between two marks of a page is replaced; a test runs this with
``--check``. After further runs, ``--add FILE`` takes in the ``results.csv`` of a folder in which ``protofed
reproduce`` ran, and ``--verdicts`` writes the verdicts on the results into ``verdicts.json``: look at what it
changes.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from protofed.trained.paired import interval, relation
from protofed_papers.cells import CONTROLS
from protofed_papers.judging import Side, judged, rules_of, verdicts
from protofed_papers.layout import Row, Scope, Sheet, committed_scopes, formula_runs
from protofed_papers.output import Facts, as_markdown, facts_of, heading, section_label, shown_rows
from protofed_papers.papers import ACCURACY, CODED, Claim, Paper, papers
from protofed_papers.results import FOLDER, committed, read_results, write_results
from protofed_papers.verdicts import CONTRADICTED, NOT_RUN, Judgement
from rows import fill, markdown, update

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "papers/reproduction"
BASELINE = ROOT / "hub" / "baseline-fedproto" / "README.md"
RESULTS = dict(committed())
STOPPED = {"full": 50}  #: Rounds of runs that a rule stopped, which the pages' README states
OTHER_RULE = "head"  #: Inference rule that nearly all methods have, by which tables are shown once more
JPEG = (
    "CIFAR-10 here is a copy of JPEG-compressed images, and it and MNIST are in another order than the originals: "
    "no run has the papers' images bit for bit.\n"
)
"""What is known of the copies behind the committed results."""


find = RESULTS.get


def verdict(paper: Paper, claim: Claim, rule: str) -> str:
    """Return the verdict at the largest scale at which anything of a claim was run, with what it rests on.

    It is bold if all cells of the claim were run.
    """
    if claim.counterexample:
        return f"**{CONTRADICTED}**: {claim.counterexample}"
    scope, own = judgement(paper, claim, rule)
    if scope is None:
        return NOT_RUN
    word = scope.shown(own.verdict)
    shown = f"{word} on {own.part}" if own.part else f"**{word}**"
    return f"{shown} (`{scope.scale}`): {own.tally.replace(f', {own.part}', '') if own.part else own.tally}"


def judgement(paper: Paper, claim: Claim, rule: str) -> tuple[Scope | None, Judgement]:
    """Return the largest scope in which anything of a claim was run, if any, and the judgement there."""
    for scope, _ in sorted(shown_scopes(), key=lambda each: each[1]):  # where few rows were run, last
        own = judged(paper, claim, replace(scope, rule=rule), find)
        if own.tally and scope.scale != "smoke":
            return scope, own
    return None, Judgement(NOT_RUN)


def claims(paper: Paper) -> Iterator[str]:
    coded = ["as coded"] if paper.coded else []
    names = ["number", "claim", "where", "tested by", "verdict", *coded]
    rows = []
    for claim in paper.claims:
        by = f"table {claim.table}" if claim.table is not None else f"figure {claim.figure}"
        by = "an example" if claim.counterexample else by
        text = f"{claim.text}. {claim.note}" if claim.note else claim.text
        rules = rules_of(paper, claim)
        verdicts = [verdict(paper, claim, rule) for rule in rules] + [""] * (len(coded) + 1 - len(rules))
        rows.append([str(claim.number), text, claim.origin, by, *verdicts])
    yield markdown(names, rows)


def shown_scopes() -> Iterator[tuple[Scope, bool]]:
    """Yield the committed scopes, some once more with other rounds, and whether only few rows have them."""
    for scope in committed_scopes().values():
        yield scope, False
        if "rounds" in scope.overrides:
            yield replace(scope, overrides={}), True
        if scope.scale in STOPPED:
            yield replace(scope, overrides={"rounds": STOPPED[scope.scale]}), True


def results(paper: Paper) -> Iterator[str]:
    yield JPEG
    for sheet, facts, known in shown_sheets(paper):
        yield as_markdown(sheet, facts, known=known)
    for scope in committed_scopes().values():
        if scope.scale == "smoke":
            yield from smoke(paper, scope)


def shown_sheets(paper: Paper) -> Iterator[tuple[Sheet, Facts, bool]]:
    """Yield the tables of a page with what made them, and whether only rows with results are shown."""
    for scope, known in shown_scopes():
        if scope.scale == "smoke":
            continue
        for table in paper.tables:
            if table.kind != "runs":
                continue
            sheet, by_head = (Sheet(paper, table, replace(scope, rule=rule), find) for rule in ("", OTHER_RULE))
            if not any(result.done for result in sheet.results()):
                continue
            seeds = ",".join(sorted({str(result.seed) for result in sheet.results()}))
            options = "".join(f" {name}={value}" for name, value in scope.overrides.items())
            target = f"{paper.name}/table{table.number}{_only(sheet)}"
            command = f"protofed reproduce {target} --scale {scope.scale} --seeds {seeds}{options}"
            yield sheet, facts_of(sheet, command), known
            if any(result.rule != OTHER_RULE and result.others.get(OTHER_RULE) for result in sheet.results()):
                yield by_head, facts_of(by_head, f"{command} --rule {OTHER_RULE}"), True


def cells() -> Iterator[str]:
    """Yield for each result on the pages its place, what it is a number of, and the runs of each seed behind it."""
    yield "page,table,line,column,scale,metric,name,rule,spread,runs"
    sheets = [(i, *own) for paper in papers().values() for i, own in enumerate(shown_sheets(paper))]
    for place, sheet, _, known in sheets:
        paper = sheet.paper
        for line, (row, filled) in enumerate(shown_rows(sheet, known=known)):
            for column, own in enumerate(filled):
                if own and own.values:
                    entry = own.entry
                    runs = ([e.key for e in sheet.experiments(entry, seed)] for seed in sheet.values(entry))
                    rule = sheet.scope.rule or paper.rules.get(row.method.removesuffix(CODED), "")
                    name = column_of(paper, entry.metric)
                    spread = float(entry.printed.std or 0) if entry.printed and paper.spread == "runs" else 0
                    facts = (paper.name, place, line, column, sheet.scope.scale, entry.metric, name, rule, spread)
                    yield ",".join(map(str, (*facts, " ".join("+".join(keys) for keys in runs))))


def column_of(paper: Paper, metric: str) -> str:
    """Return the columns of the results that make a number."""
    traffic = {"both": "up+down"}.get(paper.traffic, paper.traffic)
    known = {ACCURACY: paper.metric, "accuracy": paper.metric, "rounds": "converged", "traffic": traffic}
    known["alignment_change"] = "alignment_last-alignment_first"
    return traffic if "params" in metric else known.get(metric, metric)


def contrasts() -> Iterator[str]:
    """Yield for each cell of the comparisons behind a verdict the runs of both sides, ``a/b`` for each seed."""
    yield "page,claim,coded,scale,what,kind,point,sign,factor,margin,name,rule,other,runs"
    for paper in papers().values():
        for claim in paper.claims:
            for rule in rules_of(paper, claim) if not claim.counterexample else ():
                scope, own = judgement(paper, claim, rule)
                where = (paper.name, claim.number, rule, scope and scope.scale)
                for contrast, cell in ((c, cell) for c in own.comparisons for cell in c.cells if scope):
                    sides = cell.sides  # type: ignore[attr-defined]
                    used = [side.rule or _rule_of(paper, side) for side in sides]
                    runs = " ".join("/".join(side.runs[seed] for side in sides) for seed in cell)
                    sign = -1 if claim.better == "lower" else 1
                    facts = (contrast.kind, contrast.margin, sign, claim.factor, claim.margin)
                    named = (column_of(paper, claim.metric), *used, *[""] * (2 - len(used)), runs)
                    yield ",".join(map(str, (*where, f'"{contrast.what}"', *facts, *named)))


def _rule_of(paper: Paper, side: Side) -> str:
    """Return the rule of the paper's own metric for the method of a side."""
    key = next(iter(side.runs.values()), "").partition("+")[0]
    return paper.rules.get(RESULTS[key].method.removesuffix(CODED), "") if key else ""


def baseline(paper: Paper) -> Iterator[str]:
    """Yield a paper's first table at the largest scale, as its text describes the methods."""
    yield JPEG
    scope = next(iter(committed_scopes().values()))
    sheet = Sheet(paper, replace(paper.table(1), coded={}), scope, find)
    seeds = ",".join(map(str, scope.seeds))
    command = f"protofed reproduce {paper.name}/table1{_only(sheet)} --scale {scope.scale} --seeds {seeds}"
    yield as_markdown(sheet, facts_of(sheet, command))


def _only(sheet: Sheet) -> str:
    """Return the option that names the data sets of the runs that are there, where the table has others too."""
    entries = sheet.layout.entries.values()
    runs = [(dict(settings).get("dataset", ""), entry) for entry in entries for settings, _ in entry.runs]
    ran = {dataset for dataset, entry in runs if sheet.values(entry)}
    return f" --only dataset={','.join(sorted(ran))}" if ran != {dataset for dataset, _ in runs} else ""


Scores = dict[str, dict[int, float]]  #: Accuracy in percent by method and seed


def gains() -> Iterator[str]:
    """Compare each paper's own methods, and the best of the others, with the best control, column by column."""
    names = ["table", "setting", "rule", "seeds", "best control", "its own"]
    names += ["the paper's method", "best of the others"]
    rows: list[list[str]] = []
    for scope in committed_scopes().values():
        for paper in papers().values() if scope.scale != "smoke" else ():
            shown: list[Scores] = []
            for table in paper.tables:
                for rule in ("", OTHER_RULE) if table.kind == "runs" else ():
                    sheet = Sheet(paper, table, replace(scope, rule=rule), find)
                    rows += _rows(sheet, shown)
    yield markdown(names, rows)


def _rows(sheet: Sheet, shown: list[Scores]) -> Iterator[list[str]]:
    """Compare a table's methods, but where the same numbers were compared before, and add those to ``shown``."""
    own = list(dict.fromkeys(claim.a for claim in sheet.paper.claims if claim.ours))
    for section, column in _columns(sheet):
        scores = _scores(sheet, section, column)
        if any(name not in scores for name in (*CONTROLS, *own)) or scores in shown:
            continue
        shown.append(scores)
        options = "".join(f", {n}={value}" for n, value in sheet.scope.overrides.items())
        name = f"{sheet.paper.name}/table{sheet.table.number} (`{sheet.scope.scale}`{options})"
        where = ", ".join(part for part in (section, *heading(sheet, column)) if part)
        rule = sheet.scope.rule or "the paper's"
        yield [name, where, rule, *_gains(scores, own)]


def _columns(sheet: Sheet) -> list[tuple[str, tuple[str, ...]]]:
    """Return the columns of accuracies, with the section of rows that they belong to."""
    found = {
        (section_label(sheet, row), column): None
        for (row, column), entry in sheet.layout.entries.items()
        if entry.metric == ACCURACY
    }
    return list(found)


def _scores(sheet: Sheet, section: str, column: tuple[str, ...]) -> Scores:
    """Return the accuracies of methods that ran with two seeds or more."""

    def here(row: Row) -> bool:
        return section_label(sheet, row) == section and not any(row.inner)

    entries = {
        row.method: entry
        for (row, c), entry in sheet.layout.entries.items()
        if c == column and here(row) and not row.method.endswith(CODED)  # they have another split
    }
    return {method: values for method, entry in entries.items() if len(values := sheet.values(entry)) > 1}


def _gains(scores: Scores, own: list[str]) -> list[str]:
    seeds = sorted(set.intersection(*(set(scores[name]) for name in (*CONTROLS, *own))))
    values = {name: [of[s] for s in seeds] for name, of in scores.items() if set(seeds) <= set(of)}
    mean = {name: sum(numbers) / len(numbers) for name, numbers in values.items()}
    control = max(CONTROLS, key=mean.__getitem__)
    others = [name for name in values if name not in (*CONTROLS, *own)]

    def against(name: str) -> str:
        apart = [a - b for a, b in zip(values[name], values[control], strict=True)]
        return f"{name} {interval(apart).text()} {relation(apart)}"

    best = against(max(others, key=mean.__getitem__)) if others else ""
    return [str(len(seeds)), f"`{control}`", f"{mean[control]:.1f}", ", ".join(map(against, own)), best]


def smoke(paper: Paper, scope: Scope) -> Iterator[str]:
    """Say how many runs of a paper end at the smallest scale, whose numbers mean nothing."""
    keys = {own for t in paper.tables if t.kind == "runs" for own in Sheet(paper, t, scope, find).all_keys()}
    for table in paper.tables:
        if table.kind == "formulas":
            keys |= {experiment.key for experiment in formula_runs(paper, table, scope).values()}
    done = sum((result := find(own)) is not None and result.done for own in keys)
    yield f"At scale `smoke`, {done} of the {len(keys)} runs of these tables end; their numbers mean nothing.\n"


def add_results(path: Path) -> None:
    """Take runs into the committed results, scale by scale; a configuration that is there is replaced."""
    runs = read_results(path)
    for scale in {result.scale for result in runs}:
        own = FOLDER / f"{scale}.csv"
        kept = {r.key: r for r in (read_results(own) if own.is_file() else [])}
        kept |= {r.key: r if scale != "smoke" else replace(r, others={}) for r in runs if r.scale == scale}
        write_results(own, kept.values())
    committed.cache_clear()
    RESULTS.update(committed())


def keep_verdicts() -> None:
    """Write the verdicts on the committed results, scale by scale."""
    path = FOLDER / "verdicts.json"
    kept = json.loads(path.read_text(encoding="utf-8"))
    for scale in {result.scale for result in RESULTS.values()} - set(kept):
        rounds = {result.rounds for result in RESULTS.values() if result.scale == scale}
        kept[scale] = {"rounds": rounds.pop() if scale == "tenth" and len(rounds) == 1 else None}
    path.write_text(json.dumps(kept), encoding="utf-8")  # the scopes come from there
    for scale, scope in committed_scopes().items():
        kept[scale]["claims"] = verdicts(scope, find)
    path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    parser.add_argument("--verdicts", action="store_true", help="write verdicts.json anew from the results")
    parser.add_argument("--add", type=Path, metavar="FILE", help="results.csv whose finished runs to take in")
    given = parser.parse_args()
    if given.add:
        add_results(given.add)
    if given.verdicts:
        keep_verdicts()
    parts = {PAGES / f"{p.name}.md": {"claims": claims(p), "results": results(p)} for p in papers().values()}
    parts[PAGES / "README.md"] = {"gains": gains()}
    parts[BASELINE] = {"claims": claims(paper := papers()["fedproto"]), "baseline": baseline(paper)}
    made = {PAGES / f"{of.__name__}.csv": "\n".join(of()) + "\n" for of in (cells, contrasts)}
    for path, contents in parts.items():
        made[path] = path.read_text(encoding="utf-8")
        for name, lines in contents.items():
            made[path] = fill(made[path], name, "\n".join(lines))
    update(made, given.check)


if __name__ == "__main__":
    main()
