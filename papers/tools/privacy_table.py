"""Accuracy against ε, for studies/epsilon.md: ``papers/tools/privacy_table.py COMPARISON… [--save FILE]``.

Each comparison is a directory of ``protofed compare``, or a CSV file that ``--save`` wrote. Accuracies are those on
the clients' own test samples after the last round.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from protofed.runs.loading import load_runs
from protofed.text import mean_std
from rows import load, markdown, save

ROWS = {
    ("local", "head"): "`local`",
    ("fedproto", "head"): "`fedproto`, head",
    ("fedproto", "local"): "`fedproto`, nearest own prototype",
    ("fedproto", "global"): "`fedproto`, nearest global prototype",
    ("protonorm", "head"): "`protonorm`, head",
    ("protonorm", "local"): "`protonorm`, nearest own prototype",
    ("protonorm", "global"): "`protonorm`, nearest global prototype",
    ("beacon", "head"): "`beacon`, head (beacon and expert)",
    ("beacon", "expert"): "`beacon`, expert alone",
    ("beacon", "global_model"): "`beacon`, server's model",
    ("fedavg", "head"): "`fedavg`, after local training",
    ("fedavg", "global_model"): "`fedavg`, server's model",
}


class Result(NamedTuple):
    """Accuracy of one run by one rule, as a fraction, at a budget ε."""

    method: str
    epsilon: float
    seed: int
    rule: str
    accuracy: float


def results(places: Sequence[Path]) -> list[Result]:
    """Return all results there, in a fixed order."""
    each = (load(Result, place) if place.suffix == ".csv" else finished(place) for place in places)
    return sorted(chain.from_iterable(each))


def finished(directory: Path) -> Iterator[Result]:
    """Yield the results of every finished run of a comparison."""
    for run in load_runs([directory]):
        if run.finished:
            epsilon = float(run.config["privacy"]["epsilon"])
            for rule, outcome in run.outcome.accuracy.items():
                yield Result(run.method, epsilon, run.seed, rule, outcome.final)


def table(found: Sequence[Result]) -> str:
    """Return mean and standard deviation over seeds as a Markdown table."""
    budgets = sorted({result.epsilon for result in found})
    names = ["∞" if epsilon == float("inf") else f"{epsilon:g}" for epsilon in budgets]
    rows = []
    for (method, rule), name in ROWS.items():
        values = [[r.accuracy for r in found if r[:2] == (method, e) and r.rule == rule] for e in budgets]
        if any(values):
            cells = (mean_std(v).removesuffix("%").strip() if v else "–" for v in values)
            rows.append([name, *cells])
    return markdown(["method, rule", *names], rows, " " + "r" * len(names))


def saved(path: Path) -> str:
    """Return the table of a file that ``--save`` wrote."""
    return table(results([path]))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("comparisons", nargs="+", type=Path)
    parser.add_argument("--save", type=Path, help="write every run's figures to a CSV file")
    given = parser.parse_args()
    found = results(given.comparisons)
    if given.save:
        save(found, given.save)
    print(table(found))


if __name__ == "__main__":
    main()
