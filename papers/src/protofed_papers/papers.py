"""The numbers and claims of the papers, from the files in ``papers/``."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from protofed.errors import ConfigError, unknown_name
from protofed.untrusted.reading import read_toml

FOLDER = Path(str(resources.files("protofed_papers") / "papers"))
NAMES = ("fedproto", "tinyproto", "protonorm", "gfpl")
ACCURACY = "accuracy_percent"
CODED = "-coded"
"""End of the names of rows that do what the published code does; those of their recipes end in ``-as-coded``."""


class Printed(NamedTuple):
    """One printed number."""

    settings: Mapping[str, str]  #: As printed, by name
    method: str
    #: ``accuracy_percent``, ``rounds``, ``params_…``, ``hyperparameter`` or ``params_per_round_formula``
    metric: str
    value: str  #: As printed; empty where the paper has a dash
    std: str  #: As printed, or empty
    note: str  #: On the transcription

    @property
    def bound(self) -> bool:
        """Return whether the paper prints no number but "less than" one."""
        return self.note.startswith("printed '<")


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper."""

    number: int
    caption: str
    printed: tuple[Printed, ...]
    kind: str = "runs"  #: ``runs``, ``hyperparameters`` or ``formulas``
    rows: Sequence[str] = ()  #: Settings before the method in a row
    inner: Sequence[str] = ()  #: Settings after it
    columns: Sequence[str] = ()  #: Settings of the columns
    recipe: str = ""  #: Pattern of the recipe's name, where the paper's own does not apply
    recipes: Mapping[str, str] = field(default_factory=dict)  #: By method
    options: Mapping[str, Any] = field(default_factory=dict)  #: By hyperparameter, or method and name
    added: Sequence[str] = ()  #: Variants of its recipes that the paper does not print
    #: Methods and variants of the published code, by data set
    coded: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def rows_added(self, settings: Mapping[str, str]) -> list[str]:
        """Return the rows beside the controls that the paper does not print."""
        return [*self.added, *(f"{name}{CODED}" for name in self.coded.get(settings.get("dataset", ""), ()))]


@dataclass(frozen=True)
class Claim:
    """A claim of a paper with the comparison that tests it: ``a - factor · b`` is above ``margin``, or below."""

    number: int
    text: str
    where: str = ""
    table: int | None = None  #: Source of the comparisons
    other: int | None = None  #: Source of ``b``, if another
    figure: str = ""  #: Source of the comparisons
    metric: str = "accuracy"
    better: str = "higher"  #: ``higher``, ``lower``, or ``equal`` within a point
    a: Any = None  #: Method, or settings, of which it is claimed
    b: Sequence[Any] = ()  #: Compared with these; empty for a claim about the value itself
    also: Any = None  #: Further settings of which it is claimed
    over: Mapping[str, Any] = field(default_factory=dict)  #: Settings to which it is limited
    factor: float = 1.0  #: On the other value
    margin: float = 0.0  #: Claimed difference
    need: str = "all"  #: ``all`` comparisons, or ``most``: their mean
    every: bool = False  #: It is about every single run, so that one contradicts it
    ours: bool = False  #: A question that the tables leave open, no claim of the paper
    rule: str = ""  #: Of all accuracies; ``""`` for the paper's
    counterexample: str = ""  #: Contradicts a universal claim
    note: str = ""

    @property
    def origin(self) -> str:
        """The source, in words."""
        return "a question of ours" if self.ours else self.where


@dataclass(frozen=True)
class Figure:
    """A figure of a paper."""

    number: str  #: With a letter for a panel
    caption: str
    draw: str  #: Function that draws it
    recipe: str = ""  #: ``""`` if it needs no runs
    methods: Sequence[str] = ()
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)  #: By dotted name
    set: Mapping[str, Any] = field(default_factory=dict)  #: Further values of options
    unset: Sequence[str] = ()  #: Options of the recipe that do not apply
    against: Mapping[str, Any] = field(default_factory=dict)  #: A second set of runs: method, vary and set
    table: int | None = None
    over: Mapping[str, Sequence[str]] = field(default_factory=dict)  #: Settings to which ``table`` is limited
    options: Mapping[str, Any] = field(default_factory=dict)  #: Of the drawing
    models: bool = False  #: The drawing needs the runs' models


@dataclass(frozen=True)
class Paper:
    """A paper."""

    name: str
    title: str
    reference: str
    metric: str  #: Attribute of :class:`~protofed.runs.summary.RuleOutcome` that it prints as accuracy
    metric_why: str  #: Its words for that
    #: Counted parameters per round: those sent ``up``, in ``both`` directions, or ``up_mean``, those sent up as the
    #: mean over all rounds, of which some may send nothing
    traffic: str
    scope: str
    recipes: Mapping[str, str]  #: Pattern by printed method, and the ``default``
    tables: Sequence[PaperTable]
    claims: Sequence[Claim]
    figures: Sequence[Figure]
    coded: str = ""  #: Inference rule of methods with prototypes in the authors' code, if not the paper's
    spread: str = "clients"  #: Of a printed ±: ``runs`` or ``clients``
    rules: Mapping[str, str] = field(default_factory=dict)  #: By printed method or control, if not that of the run
    methods: Mapping[str, str] = field(default_factory=dict)  #: By printed method
    options: Mapping[str, Any] = field(default_factory=dict)  #: Option, or overrides by value, of each setting
    #: Overrides or another value, by setting and printed value
    translate: Mapping[str, Any] = field(default_factory=dict)
    adjust: Mapping[str, Any] = field(default_factory=dict)  #: By method

    def table(self, number: int) -> PaperTable:
        """Return a table by its number."""
        table: PaperTable = _find_number(self.tables, number, f"table of {self.name}")
        return table

    def claim(self, number: int) -> Claim:
        """Return a claim by its number."""
        claim: Claim = _find_number(self.claims, number, f"claim of {self.name}")
        return claim

    def figure(self, number: str) -> Figure:
        """Return a figure by its number."""
        figure: Figure = _find_number(self.figures, number, f"figure of {self.name}")
        return figure


def _find_number(parts: Sequence[Any], number: Any, kind: str) -> Any:
    found = {str(part.number): part for part in parts}
    if str(number) not in found:
        raise ConfigError(unknown_name(kind, str(number), found))
    return found[str(number)]


@cache
def papers() -> dict[str, Paper]:
    """Return all papers by name."""
    return {name: _read(name) for name in NAMES}


def find_paper(name: str) -> Paper:
    """Return a paper by its name."""
    if name not in papers():
        raise ConfigError(unknown_name("paper", name, NAMES))
    return papers()[name]


def _read(name: str) -> Paper:
    tree = read_toml(FOLDER / f"{name}.toml")
    tables = [
        PaperTable(**{**entry, "printed": read_printed(FOLDER / f"{name}-table{entry['number']}.csv")})
        for entry in tree.pop("tables")
    ]
    claims = [Claim(number, **entry) for number, entry in enumerate(_texts(tree.pop("claims"), "figure"), start=1)]
    figures = [Figure(**entry) for entry in _texts(tree.pop("figures"), "number")]
    assert set(tree) <= {f.name for f in fields(Paper)}
    return Paper(name=name, tables=tables, claims=claims, figures=figures, **tree)


def _texts(entries: Sequence[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Return entries whose ``key``, if any, is a text."""
    return [{**entry, key: str(entry[key])} if key in entry else entry for entry in entries]


def read_printed(path: Path) -> tuple[Printed, ...]:
    """Return the numbers in a CSV with columns paper, table, setting, method, metric, value, std and note."""
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(
            Printed(
                dict(part.split("=", 1) for part in row["setting"].split(";") if part),
                *(row[name] for name in Printed._fields[1:]),
            )
            for row in csv.DictReader(file)
        )
