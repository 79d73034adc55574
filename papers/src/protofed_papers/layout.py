"""Tables as the papers lay them out, with two methods that send nothing, and the runs behind every number."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from protofed.config.schema import Experiment, apply_overrides, identity, load_recipe, resolve
from protofed.runs.labels import flat
from protofed.trained.paired import POINT, interval
from protofed_papers.cells import CONTROLS, DATASETS, SCALES, divided, experiment_of, is_added
from protofed_papers.papers import ACCURACY, CODED, Paper, PaperTable, Printed, find_paper
from protofed_papers.results import FOLDER, Result, committed
from protofed_papers.verdicts import AGREES, FAILED, NO_DATA, NOT_RUN, UNREACHED, UNTESTABLE, number_verdict

Find = Callable[[str], "Result | None"]  #: Returns the result of a configuration by its key
NEARLY_ALL = 0.95
"""Share of a data set's images from which a run is at the paper's scale: a partition may leave a few out."""
RunKey = tuple[tuple[tuple[str, str], ...], str]  #: Settings and method behind a number
Only = Mapping[str, Collection[str]]
"""Values to keep of settings, by their printed names; ``method`` is one of them."""


def _printed(run: RunKey) -> dict[str, str]:
    return {**dict(run[0]), "method": run[1]}


class Row(NamedTuple):
    """A row: settings before the method, the method, and settings after it, as printed."""

    section: tuple[str, ...]
    method: str
    inner: tuple[str, ...] = ()


class Entry(NamedTuple):
    """A number of a table (None if not printed), and the settings and method of each run behind it."""

    printed: Printed | None
    metric: str
    runs: tuple[RunKey, ...]


@dataclass(frozen=True)
class TableLayout:
    """A table's rows and columns."""

    rows: list[Row]  #: In the paper's order, controls before the methods of a section
    columns: list[tuple[str, ...]]  #: Values of the columns' settings, or a metric alone
    entries: dict[tuple[Row, tuple[str, ...]], Entry]


def _frozen(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(settings.items())


def layout(table: PaperTable) -> TableLayout:
    """Return the layout of a table of runs."""
    entries: dict[tuple[Row, tuple[str, ...]], Entry] = {}
    rows: dict[Row, None] = {}
    columns: dict[tuple[str, ...], None] = {}
    scores = [p for p in table.printed if p.metric == ACCURACY]
    for printed in scores:
        own = printed.settings
        section = tuple(own.get(name, "") for name in table.rows)
        column = tuple(own.get(name, "") for name in table.columns)
        for method in (*CONTROLS, *table.rows_added(own)):
            added = Row(section, method, ("",) * len(table.inner))
            if is_added(table, method):
                if method in CONTROLS:
                    rows.setdefault(added)  # before the methods of the section, variants after them
                entries.setdefault((added, column), Entry(None, ACCURACY, ((_frozen(own), method),)))
        row = Row(section, printed.method, tuple(own.get(name, "") for name in table.inner))
        rows.setdefault(row)
        columns.setdefault(column)
        entries[row, column] = Entry(printed, ACCURACY, ((_frozen(own), printed.method),))
    rows |= dict.fromkeys(row for row, _ in entries)
    for printed in table.printed:
        if printed.metric != ACCURACY:
            _add_count(table, printed, scores, rows, columns, entries)
    return TableLayout(_group(list(rows)), _order(table, list(columns)), entries)


def _add_count(
    table: PaperTable,
    printed: Printed,
    scores: Sequence[Printed],
    rows: Mapping[Row, None],
    columns: dict[tuple[str, ...], None],
    entries: dict[tuple[Row, tuple[str, ...]], Entry],
) -> None:
    """Add a number of rounds or parameters to the rows it is about; it may stand for several rows and columns."""
    own = printed.settings
    whole = all(name in own for name in table.columns)
    column = (*(own[name] for name in table.columns if whole), printed.metric)
    for row in rows:
        given = dict(zip((*table.rows, *table.inner), (*row.section, *row.inner), strict=True))
        if row.method != printed.method or any(own.get(name, value) != value for name, value in given.items()):
            continue
        runs = [
            (_frozen(p.settings), p.method)
            for p in scores
            if p.method == printed.method
            and all(p.settings.get(name, "") == value for name, value in given.items())
            and (not whole or all(p.settings.get(name) == own[name] for name in table.columns))
        ]
        columns.setdefault(column)
        entries[row, column] = Entry(printed, printed.metric, tuple(runs))


def _group(rows: list[Row]) -> list[Row]:
    """Return rows with those of one section together."""
    sections = list(dict.fromkeys(row.section for row in rows))
    return sorted(rows, key=lambda row: sections.index(row.section))


def _order(table: PaperTable, columns: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Return columns with counts beside the accuracies of the same settings, or at the end."""
    n = len(table.columns)
    plain = [column for column in columns if len(column) == n]
    beside = [column for column in columns if len(column) == n + 1 and n]
    alone = [column for column in columns if column not in plain and column not in beside]
    if not beside:
        return plain + alone
    return [c for own in plain for c in (own, *(b for b in beside if b[:-1] == own))] + alone


METRICS = {
    "rounds": ("converged", 1.0),
    "params_thousands": ("traffic", 1e-3),
    "params_millions": ("traffic", 1e-6),
}


TENS = 10.0  #: Margin of numbers of rounds, which are printed in tens
LAST = {"best": "final", "best_client_mean": "client_mean"}
"""The accuracy after the last round that belongs to one of the best round."""


def scores(paper: Paper, result: Result, rule: str = "") -> Mapping[str, float]:
    """Return the numbers of a result by a table's rule, or the paper's."""
    return result.by(rule or paper.rules.get(result.method.removesuffix(CODED), ""))


def measured(paper: Paper, result: Result, metric: str, rule: str = "") -> float | None:
    """Return a number of a result as the paper would print it, by a rule or the paper's; None if it has none.

    A run in which clients diverged has no number in a table; claims are about where it ended.

    Args:
        metric: Printed, or of claims.
    """
    values = scores(paper, result, rule)
    if not result.done:
        ended = values.get(LAST.get(paper.metric, paper.metric))
        return 100.0 * ended if metric == "accuracy" and ended is not None else None
    if metric in (ACCURACY, "accuracy"):
        value, factor = values.get(paper.metric), 100.0
    elif metric in ("traffic", "params_thousands", "params_millions"):
        names = ("up", "down") if paper.traffic == "both" else (paper.traffic,)
        value = sum(values[n] for n in names) if all(n in values for n in names) else None
        factor = METRICS.get(metric, ("", 1.0))[1]
    elif metric == "alignment_change":
        known = "alignment_first" in values
        value, factor = (values["alignment_last"] - values["alignment_first"] if known else None), 1.0
    elif metric == "rounds" and not values.get("up") and not values.get("down"):
        value, factor = 0.0, 1.0  # of communication
    else:
        name, factor = METRICS.get(metric, (metric, 100.0 if metric in ("client_std", "moved") else 1.0))
        value = values.get(name)
    return None if value is None else factor * value


@dataclass(frozen=True)
class Scope:
    """The extent to which a table is run, and the rule of its accuracies (``""`` for the paper's)."""

    scale: str = "full"
    seeds: tuple[int, ...] = (0, 1, 2)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    rule: str = ""

    @property
    def as_printed(self) -> bool:
        """Return whether runs have the paper's scale, options and rule, however and wherever they are computed."""
        plain = self.scale == "full" and not self.rule
        return plain and not flat(identity(apply_overrides({}, self.overrides)))

    def shown(self, verdict: str) -> str:
        """Return a verdict as it is shown: in brackets where nothing follows from it for the paper."""
        return verdict if self.as_printed or verdict in (NOT_RUN, UNTESTABLE) else f"({verdict})"


def committed_scopes() -> dict[str, Scope]:
    """Return the scopes of the results that come with the library, the largest scale first."""
    kept = json.loads((FOLDER / "verdicts.json").read_text(encoding="utf-8"))
    found = {}
    for scale in sorted(kept, key=SCALES.index):
        rounds = kept[scale]["rounds"]
        seeds = tuple(sorted({result.seed for result in committed().values() if result.scale == scale}))
        found[scale] = Scope(scale, seeds or (0,), {"rounds": rounds} if rounds else {})
    return found


@dataclass(frozen=True)
class Filled:
    """One number of a table, as printed and as found here."""

    entry: Entry
    values: tuple[float, ...]  #: One per seed
    verdict: str  #: In brackets if the runs are not the paper's in scale
    #: ``done``, ``not run``, ``no data``, ``failed``, or ``unreached`` if runs ended before they converged
    state: str

    @property
    def mean(self) -> float | None:
        """Mean over seeds."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def half(self) -> float | None:
        """Half of the 95 % interval over seeds; None with fewer than two."""
        return interval(self.values).half if len(self.values) > 1 else None


@dataclass(frozen=True)
class Sheet:
    """A table with what was found for every number, and the reason for each missing data set."""

    paper: Paper
    table: PaperTable
    scope: Scope
    find: Find
    missing: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def _known(self) -> dict[RunKey, dict[int, Experiment]]:
        """Experiments that were resolved before, with any seed."""
        return {}

    @cached_property
    def layout(self) -> TableLayout:
        """Rows, columns and entries."""
        return layout(self.table)

    def experiments(self, entry: Entry, seed: int) -> list[Experiment]:
        """Return the runs behind a number with one seed."""
        return [self._experiment(run, seed) for run in entry.runs]

    def _experiment(self, run: RunKey, seed: int) -> Experiment:
        known = self._known.setdefault(run, {})
        if seed not in known:
            scope = (self.scope.scale, self.scope.overrides)
            known[seed] = (
                replace(next(iter(known.values())), seed=seed)
                if known
                else experiment_of(self.paper, self.table, dict(run[0]), run[1], seed, *scope)
            )
        return known[seed]

    def all(self, only: Only = MappingProxyType({})) -> Iterator[tuple[Entry, Experiment, str]]:
        """Yield the runs of the table once each, with the method's printed name: seed by seed.

        Args:
            only: Settings and ``method`` to keep, as printed; all by default.
        """
        seen = set()
        for seed in self.scope.seeds:
            for row in self.layout.rows:
                for column in self.layout.columns:
                    entry = self.layout.entries.get((row, column))
                    for run in entry.runs if entry else ():
                        if any(_printed(run).get(name) not in values for name, values in only.items()):
                            continue
                        experiment = self._experiment(run, seed)
                        if (own := experiment.key) not in seen:
                            seen.add(own)
                            yield entry, experiment, row.method  # type: ignore[misc]

    def settings(self) -> dict[str, set[str]]:
        """Return the values of every setting in the table, with the methods as ``method``."""
        found: dict[str, set[str]] = {}
        for entry in self.layout.entries.values():
            for run in entry.runs:
                for name, value in _printed(run).items():
                    found.setdefault(name, set()).add(value)
        return found

    def all_keys(self) -> list[str]:
        """Return the keys of all runs of the table."""
        return [experiment.key for _, experiment, _ in self.all()]

    def columns_of(self, source: str) -> list[tuple[str, ...]]:
        """Return the columns, with the rows' settings, whose runs are on a data set."""
        found = {
            (*row.section, *column): None
            for (row, column), entry in self.layout.entries.items()
            if self.dataset(entry) == source
        }
        return list(found)

    def values(self, entry: Entry, metric: str = "") -> dict[int, float]:
        """Return one value per seed for which all runs behind an entry are there, of its own metric by default."""
        found: dict[int, float] = {}
        for seed in self.scope.seeds:
            results = [self.find(experiment.key) for experiment in self.experiments(entry, seed)]
            wanted = (metric or entry.metric, self.scope.rule)
            values = [measured(self.paper, r, *wanted) if r else None for r in results]
            if values and None not in values:
                found[seed] = statistics.fmean(v for v in values if v is not None)
        return found

    def results(self) -> list[Result]:
        """Return the results of all runs that are there."""
        return [result for _, e, _ in self.all() if (result := self.find(e.key))]

    def filled(self, row: Row, column: tuple[str, ...]) -> Filled | None:
        """Return the result for a place of the table; None if the paper has no number there."""
        entry = self.layout.entries.get((row, column))
        if entry is None:
            return None
        state = self._state(entry)
        values = () if state == FAILED else tuple(self.values(entry).values())
        state = "done" if values else state
        if not values and state == FAILED and entry.printed and not entry.printed.value:
            verdict = AGREES
        elif not values:
            verdict = state
        elif entry.printed is None:
            verdict = ""
        else:
            kind = {"counted": entry.metric.startswith("params"), "bound": entry.printed.bound}
            margin = TENS if entry.metric == "rounds" else POINT
            if self.paper.spread == "runs":
                margin = max(margin, 2 * float(entry.printed.std or 0))
            verdict = number_verdict(entry.printed.value, values, margin=margin, **kind)
        if values and verdict and not self.comparable(entry):
            verdict = "smoke" if self.scope.scale == "smoke" else f"({verdict})"
        return Filled(entry, values, verdict, state)

    def comparable(self, entry: Entry) -> bool:
        """Return whether the runs behind a number are the paper's: all rounds, all images, its rule."""
        if not self.scope.as_printed:
            return False
        experiments = [e for seed in self.scope.seeds for e in self.experiments(entry, seed)]
        found = [(divided(e), self.find(e.key)) for e in experiments]
        return all(result is None or result.images >= NEARLY_ALL * images for images, result in found)

    def _state(self, entry: Entry) -> str:
        dataset = self.dataset(entry)
        if dataset in self.missing:
            return NO_DATA
        results = [[self.find(e.key) for e in self.experiments(entry, seed)] for seed in self.scope.seeds]
        if any(own is not None and not own.done for r in results for own in r):
            return FAILED
        return UNREACHED if entry.metric == "rounds" and any(r and None not in r for r in results) else NOT_RUN

    def dataset(self, entry: Entry) -> str:
        """Return the name of the data set of a number's runs."""
        return self.experiments(entry, self.scope.seeds[0])[0].data.source if entry.runs else ""

    def moved(self) -> str:
        """Return in one sentence how accuracies still moved at the end of the runs."""
        scored = [scores(self.paper, result, self.scope.rule) for result in self.results()]
        moves = [100 * values["moved"] for values in scored if "moved" in values]
        if not moves:
            return ""
        rounds = sorted({r.rounds for r in self.results() if r.done})
        shown = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
        return (
            f"Over the last tenth of {shown} rounds accuracies changed by {min(moves):+.1f} to {max(moves):+.1f} "
            f"points, {statistics.fmean(moves):+.1f} on average."
        )


class Hyperparameter(NamedTuple):
    """A hyperparameter as printed and in the recipe."""

    method: str
    name: str
    column: str
    printed: str
    ours: str

    @property
    def verdict(self) -> str:
        """Return whether they are the same."""
        if not self.ours:
            return "no option"
        return AGREES if float(self.ours) == float(self.printed) else "differs"


class Formula(NamedTuple):
    """A method's traffic in a round: the paper's formula, its value for the clients here, and the count."""

    method: str
    text: str
    expected: float | None
    counted: float | None

    @property
    def verdict(self) -> str:
        """Return whether what was counted is within half a percent of the formula."""
        if self.counted is None:
            return "not counted"
        if self.expected is None:
            return "varies"
        return AGREES if abs(self.counted - self.expected) <= 0.005 * self.expected else "differs"


def formula_runs(paper: Paper, table: PaperTable, scope: Scope) -> dict[str, Experiment]:
    """Return a run of each method of a table of formulas, with the first seed."""
    given = (scope.seeds[0], scope.scale, scope.overrides)
    return {p.method: experiment_of(paper, table, {}, p.method, *given) for p in table.printed}


def formulas(paper: Paper, table: PaperTable, scope: Scope, find: Find) -> list[Formula]:
    """Return a table of formulas with what runs of its methods sent, of this scope or else of a committed one."""
    found, runs = [], [formula_runs(paper, table, own) for own in (scope, *committed_scopes().values())]
    for printed in table.printed:
        results = (find(own[printed.method].key) for own in runs)
        values = next((result.values for result in results if result), {})
        counted = values["up"] + values["down"] if "up" in values and "down" in values else None
        found.append(Formula(printed.method, printed.value, values.get("formula"), counted))
    return found


@cache
def hyperparameters(name: str, number: int) -> tuple[Hyperparameter, ...]:
    """Return a table of hyperparameters with the values of the recipes."""
    paper = find_paper(name)
    table = paper.table(number)
    found = []
    for printed in table.printed:
        dataset = printed.settings.get("dataset", "")
        pattern = table.recipes.get(printed.method) or table.recipe or paper.recipes["default"]
        recipe = pattern.format(dataset=DATASETS.get(dataset, dataset))
        known = table.options.get(printed.method, table.options)
        option = known.get(printed.settings["name"], "")
        tree: Any = resolve(load_recipe(recipe), method=paper.methods.get(printed.method, printed.method)).to_tree()
        for part in option.split(".") if option else ():
            tree = tree[part]
        ours = f"{tree:g}" if option else ""
        found.append(Hyperparameter(printed.method, printed.settings["name"], dataset, printed.value, ours))
    return tuple(found)
