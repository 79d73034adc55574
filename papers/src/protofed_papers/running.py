"""Running what is missing of the papers' tables and figures."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protofed.config.schema import Experiment, apply_overrides, check_method_options, resolve
from protofed.errors import CheckpointError, ConfigError, DataError, OutputError, ProtofedError, unknown_name
from protofed.experiments.batch import RunTask, claim, folder, run_tasks
from protofed.experiments.loading import load_data
from protofed.experiments.running import Progress
from protofed.runs.loading import load_run, load_runs
from protofed.trained.metrics import measure
from protofed_papers.cells import figure_runs
from protofed_papers.drawing import draw
from protofed_papers.judging import judged
from protofed_papers.layout import Find, Only, Scope, Sheet, formula_runs
from protofed_papers.papers import Claim, Figure, Paper, PaperTable, find_paper, papers
from protofed_papers.results import Result, committed, read_results, result_of, write_results
from protofed_papers.verdicts import NOT_RUN, Judgement


@dataclass(frozen=True)
class Reproduction:
    """A request to reproduce papers."""

    #: ``all``, a paper, or a part of one such as ``protonorm/table1``, ``gfpl/figure3a`` or ``fedproto/claim2``
    target: str
    scope: Scope = field(default_factory=Scope)
    out: Path = Path("runs/reproduction")
    jobs: int = 1
    budget: float | None = None  #: Seconds after which no further round begins
    run: bool = True  #: Run the missing, or only show the existing
    #: Settings and methods of tables to run; with any, nothing else is run
    only: Only = field(default_factory=dict)
    #: Options that do not change results, such as ``data.data_dir``
    place: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Reproduced:
    """The reproduced parts of papers."""

    sheets: list[Sheet] = field(default_factory=list)  #: Of runs
    others: list[tuple[Paper, PaperTable]] = field(default_factory=list)  #: Without runs of their own
    claims: list[tuple[Paper, Claim, Judgement]] = field(default_factory=list)
    #: Files of each, or why there are none
    figures: list[tuple[Paper, Figure, list[Path], str]] = field(default_factory=list)
    waiting: int = 0  #: Runs for which the time was up
    failed: dict[str, str] = field(default_factory=dict)  #: Reasons by label
    missing: dict[str, str] = field(default_factory=dict)  #: Reasons by data set
    find: Find = field(default=lambda key: None)


Parts = tuple[list[tuple[Paper, PaperTable]], list[tuple[Paper, Figure]], list[tuple[Paper, Claim]]]


def parts_of(target: str) -> Parts:
    """Return the tables, figures and claims that a target names."""
    if target == "all" or "/" not in target:
        chosen = list(papers().values()) if target == "all" else [find_paper(target)]
        return (
            [(paper, table) for paper in chosen for table in paper.tables],
            [(paper, figure) for paper in chosen for figure in paper.figures],
            [(paper, claim) for paper in chosen for claim in paper.claims],
        )
    name, _, part = target.partition("/")
    paper = find_paper(name)
    for kind in ("table", "figure", "claim"):
        rest = part.removeprefix(kind)
        if rest == part:
            continue
        if kind == "table":
            table = paper.table(_whole(rest, target))
            return [(paper, table)], [], [(paper, c) for c in paper.claims if c.table == table.number]
        if kind == "figure":
            figure = paper.figure(rest)
            return [], [(paper, figure)], [(paper, c) for c in paper.claims if c.figure == figure.number]
        found = paper.claim(_whole(rest, target))
        tables = [(paper, paper.table(n)) for n in (found.table, found.other) if n is not None]
        return tables, [(paper, paper.figure(found.figure))] if found.figure else [], [(paper, found)]
    raise ConfigError(unknown_name("part", part, [f"{name}/table1", f"{name}/figure1", f"{name}/claim1"]))


def _whole(text: str, target: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise ConfigError(f"{target[:30]}: {text[:30]!r} is no number")
    return int(text)


class ResultLibrary:
    """Results at hand: those that come with the library, and those of a folder."""

    def __init__(self, out: Path) -> None:
        self.path = out / "results.csv"
        self.own = {r.key: r for r in read_results(self.path)} if self.path.is_file() else {}
        self.given = committed()

    def find(self, key: str) -> Result | None:
        """Return the result of a configuration; None if it was not run."""
        return self.own.get(key) or self.given.get(key)

    def has(self, key: str, scale: str) -> bool:
        """Return whether a configuration need not be run; the smallest scale always is, to check that all works."""
        return key in self.own or (scale != "smoke" and key in self.given)

    def add(self, result: Result) -> None:
        """Keep a result."""
        self.own[result.key] = result
        write_results(self.path, self.own.values())


@dataclass(frozen=True)
class _Wanted:
    """A run that is asked for."""

    experiment: Experiment
    method: str
    models: bool = False


def reproduce(request: Reproduction, progress: Progress | None = None) -> Reproduced:
    """Run what is missing of tables and figures, and judge claims."""
    tables, figures, claims = parts_of(request.target)
    library = ResultLibrary(request.out)
    found = Reproduced()
    scope = request.scope
    for paper, table in tables:
        if table.kind == "runs":
            found.sheets.append(Sheet(paper, table, scope, library.find, found.missing))
        else:
            found.others.append((paper, table))
    found.find = library.find
    _check_only(request, found.sheets)
    wanted = [_Wanted(e, method) for sheet in found.sheets for _, e, method in sheet.all(request.only)]
    for paper, table in found.others if not request.only else ():
        if table.kind == "formulas":
            wanted += [_Wanted(e, method) for method, e in formula_runs(paper, table, scope).items()]
    for paper, figure in figures if not request.only else ():
        for seed in scope.seeds if not figure.models else scope.seeds[:1]:
            runs = figure_runs(paper, figure, seed, scope.scale, scope.overrides)
            wanted += [_Wanted(e, e.method, figure.models) for e in runs]
    check_method_options(scope.overrides, {want.experiment.method for want in wanted})
    if request.run or figures:
        claim(request.out)
    if request.run:
        _run(wanted, request, library, found, progress or Progress())
    for paper, figure in figures:
        paths, why = _drawn(paper, figure, request, library, found)
        found.figures.append((paper, figure, paths, why))
    for paper, own in claims:
        found.claims.append((paper, own, judged(paper, own, scope, library.find)))
    return found


def _check_only(request: Reproduction, sheets: Sequence[Sheet]) -> None:
    """Refuse settings to keep that no table has."""
    if not request.only:
        return
    known: dict[str, set[str]] = {}
    for sheet in sheets:
        for name, values in sheet.settings().items():
            known.setdefault(name, set()).update(values)
    for name, wanted in request.only.items():
        if name not in known:
            raise ConfigError(f"--only: {unknown_name('setting', name, sorted(known))} in {request.target}")
        for value in wanted:
            if value not in known[name]:
                raise ConfigError(f"--only: {unknown_name(name, value, sorted(known[name]))} in {request.target}")


def _directory(request: Reproduction, experiment: Experiment, models: bool) -> Path:
    return request.out / ("models" if models else "runs") / folder(experiment)


def _run(
    wanted: Sequence[_Wanted], request: Reproduction, library: ResultLibrary, found: Reproduced, progress: Progress
) -> None:
    """Run what has no result yet, or whose models a figure needs."""
    probed: dict[str, bool] = {}
    tasks: dict[Path, tuple[RunTask, _Wanted]] = {}
    for want in wanted:
        experiment = want.experiment
        directory = _directory(request, experiment, want.models)
        if directory in tasks or (not want.models and library.has(experiment.key, request.scope.scale)):
            continue
        if want.models and (directory / "summary.json").is_file():
            continue
        source = experiment.data.source
        tree = apply_overrides(experiment.to_tree(), request.place)
        if source not in probed:
            try:
                load_data(resolve(tree))
                probed[source] = True
            except DataError as error:
                probed[source], found.missing[source] = False, str(error)
        if probed[source]:
            label = f"{experiment.recipe} {want.method} seed {experiment.seed}"
            tasks[directory] = (RunTask(tree, directory, label, True, measure), want)
    progress.planned(len(tasks))
    deadline = None if request.budget is None else time.monotonic() + request.budget
    jobs = [task for task, _ in tasks.values()]
    wants = [want for _, want in tasks.values()]
    for place, outcome in run_tasks(jobs, jobs=request.jobs, progress=progress, deadline=deadline, keep_going=True):
        want, directory = wants[place], jobs[place].directory
        own = want.experiment.key
        if outcome is None:
            found.waiting += 1
        elif isinstance(outcome, (DataError, OutputError, CheckpointError)):
            found.failed[jobs[place].label] = str(outcome)  # not the configuration's fault: it may run another time
        elif isinstance(outcome, ProtofedError):
            found.failed[jobs[place].label] = str(outcome)
            e = want.experiment
            library.add(Result(own, request.scope.scale, e.recipe, want.method, e.seed, state=f"failed: {outcome}"))
        else:
            library.add(result_of(load_run(directory), own, request.scope.scale, want.method))
            if not want.models:
                shutil.rmtree(directory / "clients", ignore_errors=True)  # gigabytes, which no table needs


def _drawn(
    paper: Paper, figure: Figure, request: Reproduction, library: ResultLibrary, found: Reproduced
) -> tuple[list[Path], str]:
    """Draw a figure from the runs that are there; return its files, or why there are none."""
    from protofed.analysis.figures import save_figure

    scope = request.scope
    places: list[Path] = []
    for seed in scope.seeds:
        for experiment in figure_runs(paper, figure, seed, scope.scale, scope.overrides):
            directory = _directory(request, experiment, figure.models)
            if experiment.data.source in found.missing:
                return [], found.missing[experiment.data.source]
            if (directory / "summary.json").is_file():
                places.append(directory)
    if figure.recipe and figure.draw not in ("spiral_data", "splits") and not places:
        return [], NOT_RUN
    runs = load_runs(places) if places else []
    path = request.out / "figures" / f"{paper.name}-figure{figure.number}-{scope.scale}"
    try:
        return save_figure(draw(paper, figure, runs, request.scope, library.find, request.place), path), ""
    except DataError as error:
        return [], str(error)
