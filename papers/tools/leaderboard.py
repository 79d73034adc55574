"""The page studies/leaderboard.md, methods in scenarios: ``papers/tools/leaderboard.py [--check | --add DIR]``.

``studies/leaderboard.toml`` has the scenarios and the arms, ``studies/leaderboard.csv`` the figures of every
run, which ``--add`` writes of a directory of ``protofed compare studies/leaderboard.toml``. A row holds the key
of its run's configuration: one that is not that of the recipe is refused.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from does_it_help import PLAIN, STUDY, Arm, Measured, Scores, apart, control_of, final, measured, table, written
from protofed.config.schema import Tree, apply_overrides, load_recipe, resolve
from protofed.errors import ProtofedError
from protofed.runs.files import read_comparison
from protofed.runs.loading import load_run
from protofed.trained.paired import BETTER, WORSE, relation
from rows import markdown, read_rows, update, write_rows

RECIPE = STUDY / "leaderboard.toml"
FIGURES = STUDY / "leaderboard.csv"
COLUMNS = ("scenario", "arm", "seed", "key", "bytes", "seconds", "rule", *(f.name for f in fields(Scores)))
AXIS = "scenario"
REFERENCE = "fedlda"
OTHER_LOSS = ("fml-tiny", "fedkd-tiny", "fedmrl-tiny")  #: Arms of two networks with plain softmax
SIGNS = {BETTER: "▲", WORSE: "▼"}  #: Marks of a gain or loss against the best control that computes as much

Runs = dict[tuple[str, str, int], tuple[str, Measured]]
"""Key of the configuration and figures of a run, by scenario, arm and seed."""


def recipe() -> Tree:
    """Return the recipe of the leaderboard."""
    return load_recipe(str(RECIPE))


def scenarios(tree: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the overrides of every scenario by its name."""
    return dict(tree["compare"]["axes"][AXIS])


def expected(tree: Tree, scenario: str, arm: str, seed: int) -> str:
    """Return the key that the configuration of a run must have.

    Raises:
        ProtofedError: If the recipe has no such scenario or arm.
    """
    if scenario not in scenarios(tree):
        raise ProtofedError(f"{RECIPE.name} has no scenario {scenario!r}: add it there first")
    return resolve(apply_overrides(tree, scenarios(tree)[scenario]), method=arm, seed=seed).key


def read() -> Runs:
    """Return the figures of every run."""
    found = measured(read_rows(FIGURES), "scenario", "arm", "seed", "key")
    return {(scenario, arm, int(seed)): (key, run) for (scenario, arm, seed, key), run in found.items()}


def finished(directory: Path) -> Iterator[tuple[tuple[str, str, int], tuple[str, Measured]]]:
    """Yield the finished runs of a comparison along the scenarios."""
    for listed in read_comparison(directory / "comparison.json").runs:
        if (directory / listed.directory / "summary.json").is_file():
            run = load_run(directory / listed.directory)
            if run.finished and listed.seed is not None:
                yield (listed.values[0], listed.method, listed.seed), (resolve(run.config).key, Measured.of(run))


def checked(runs: Runs) -> Runs:
    """Return runs as they are given.

    Raises:
        ProtofedError: If the configuration of one is not that of the recipe.
    """
    tree = recipe()
    for (scenario, arm, seed), (key, _) in runs.items():
        if key != expected(tree, scenario, arm, seed):
            raise ProtofedError(
                f"{scenario}, {arm}, seed {seed}: was run with another configuration than {RECIPE.name}"
            )
    return runs


def write(runs: Runs) -> None:
    """Write one line per run and rule, in the order of the recipe."""
    tree = recipe()
    order = [list(scenarios(tree)), list(tree["compare"]["methods"])]

    def place(run: tuple[str, str, int]) -> tuple[int, int, int]:
        return order[0].index(run[0]), order[1].index(run[1]), run[2]

    rows: list[dict[str, Any]] = []
    for scenario, arm, seed in sorted(runs, key=place):
        key, run = runs[scenario, arm, seed]
        rows += ({"scenario": scenario, "arm": arm, "seed": seed, "key": key, **line} for line in written(run))
    write_rows(FIGURES, COLUMNS, rows)


def arms(runs: Runs, scenario: str) -> list[Arm]:
    """Return the arms of a scenario, in the order of the file."""
    found: dict[str, dict[int, Measured]] = {}
    for (where, arm, seed), (_, run) in runs.items():
        if where == scenario:
            found.setdefault(arm.removesuffix("-fixed"), {})[seed] = run
    return [Arm(label, of, PLAIN if label in OTHER_LOSS else {}) for label, of in found.items()]


def overview(found: Mapping[str, Sequence[Arm]]) -> str:
    """Return accuracy on own samples, by arm and scenario, marked where it is above or below the arm's control."""
    labels = list(dict.fromkeys(arm.label for arm in itertools.chain(*found.values())))
    lines = []
    for label in labels:
        cells = []
        for members in found.values():
            arm = next((arm for arm in members if arm.label == label), None)
            cells.append("–" if arm is None else _cell(arm, members))
        lines.append([f"`{label}`", *cells])
    return markdown(["arm", *found], lines)


def _cell(arm: Arm, members: Sequence[Arm]) -> str:
    values = arm.values(final)
    control, _ = control_of(arm, members)
    sign = ""
    if control is not None and control is not arm:
        sign = SIGNS.get(relation(apart(arm, control, final)), "")
    return f"{sum(values) / len(values):.1f} {sign}".strip()


def page(runs: Runs) -> str:
    """Return the page."""
    found = {scenario: arms(runs, scenario) for scenario in scenarios(recipe())}
    found = {scenario: members for scenario, members in found.items() if members}
    parts = [(STUDY / "leaderboard.txt").read_text(encoding="utf-8").strip(), overview(found)]
    for scenario, members in found.items():
        parts += [f"## {scenario[0].upper()}{scenario[1:]}", table(members, REFERENCE)]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--add", type=Path, help="take in the finished runs of a comparison")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    given = parser.parse_args()
    runs = read()
    try:
        if given.add:
            write(checked(runs | dict(finished(given.add))))
            runs = read()
        text = page(checked(runs))
    except ProtofedError as error:
        sys.exit(f"error: {error}")
    update({STUDY / "leaderboard.md": text}, given.check)


if __name__ == "__main__":
    main()
