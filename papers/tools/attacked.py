"""What attackers that see all uploads leave to honest clients: ``papers/tools/attacked.py STUDY DIR [--save]``.

DIR has the runs of ``protofed compare STUDY.toml --out DIR``, made in ``docs/examples``, whose code
``choosing`` takes. ``colluding``: their accuracies by the rules ``global`` and ``head``, bold where either is over
three points below that without attackers and robust rule. ``choosing``: the points lost by clients that predict by
one rule, or by the one that their validation samples choose.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from protofed.config.schema import load_recipe
from protofed.runs.loading import load_run
from protofed.runs.run import Run

STUDY = Path(__file__).resolve().parents[1] / "studies"
LOST = 3.0  #: A loss of more points is bold
SHOWN = ("global", "head")
CHOICES = ("global", "local", "head", "validated")
ATTACKS = {"4 alie": "ALIE", "4 inner_product": "inner product", "4 min_max": "min-max", "4 limit": "limit"}

Find = Callable[[str, str, str], list[Run]]  #: Runs of a method, an attack and a robust rule, one of each seed


def hostile(run: Run, attack: str) -> set[str]:
    """Return the clients that attacked in a run's last round."""
    if attack == "none":
        return set()
    met = run.rounds[-1].attack
    assert met is not None
    return set(met.clients)


def accuracy(run: Run, without: set[str], rule: str) -> float:
    """Return the accuracy of all but some clients, in percent of their test samples."""
    last, hits, total = run.rounds[-1], 0.0, 0
    assert last.accuracy is not None
    for place, client in enumerate(run.clients):
        samples = sum(client.test)
        if client.name in without or not samples:
            continue
        chosen = rule if rule != "validated" else run.validated_rule(client.name) or run.main_rule
        hits += samples * (last.accuracy.clients[chosen][place] or 0.0)
        total += samples
    return 100 * hits / total


def lost(find: Find, method: str, attack: str, guard: str, calm: str, rule: str) -> float:
    """Return the points that the honest lose on average over seeds, against runs with the rule ``calm`` alone."""
    gone = []
    for attacked, quiet in zip(find(method, attack, guard), find(method, "none", calm), strict=True):
        without = hostile(attacked, attack)
        gone.append(accuracy(quiet, without, rule) - accuracy(attacked, without, rule))
    return statistics.fmean(gone)


def colluding(tree: Mapping[str, Any], find: Find) -> Iterator[list[str]]:
    """Yield the rows of papers/studies/tables/colluding.csv."""
    attacks, guards = list(tree["axes"]["attack"]), list(tree["axes"]["rule"])
    yield ["method", "rule", *attacks]
    for method in tree["methods"]:
        for guard in guards:
            cells = []
            for attack in attacks:
                runs = find(method, attack, guard)
                means = [statistics.fmean(accuracy(r, hostile(r, attack), rule) for r in runs) for rule in SHOWN]
                worst = max(lost(find, method, attack, guard, "none", rule) for rule in SHOWN)
                text = " / ".join(f"{mean:.0f}" for mean in means)
                cells.append(f"**{text}**" if worst > LOST else text)
            yield [method if guard == guards[0] else "", guard, *cells]


def choosing(tree: Mapping[str, Any], find: Find) -> Iterator[list[str]]:
    """Yield the rows of papers/studies/tables/choosing.csv."""
    yield ["method", "at the server", "predicted by", "no attacker", *ATTACKS.values()]
    for method in tree["methods"]:
        for guard in tree["axes"]["rule"]:
            for rule in CHOICES:
                calm = statistics.fmean(accuracy(run, set(), rule) for run in find(method, "none", guard))
                losses = [lost(find, method, attack, guard, guard, rule) for attack in ATTACKS]
                yield [f"`{method}`", guard, f"`{rule}`", *(f"{value:.1f}" for value in (calm, *losses))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", choices=("colluding", "choosing"))
    parser.add_argument("directory", type=Path)
    parser.add_argument("--save", action="store_true", help="write papers/studies/tables/STUDY.csv")
    given = parser.parse_args()
    tree = load_recipe(str(STUDY / f"{given.study}.toml"))["compare"]

    @cache
    def find(method: str, attack: str, guard: str) -> list[Run]:
        name = "_".join((method, attack, guard)).replace(" ", "-")
        return [load_run(given.directory / f"{name}-seed{seed}") for seed in tree["seeds"]]

    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(
        {"colluding": colluding, "choosing": choosing}[given.study](tree, find)
    )
    if given.save:
        (STUDY / "tables" / f"{given.study}.csv").write_text(out.getvalue(), encoding="utf-8")
    print(out.getvalue(), end="")


if __name__ == "__main__":
    main()
