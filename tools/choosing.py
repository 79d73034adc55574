"""What clients lose that choose their rule by validation samples: ``python tools/choosing.py DIR [--save]``.

DIR has the runs of ``protofed compare ../study/choosing.toml --out DIR``, made in ``docs/examples``. The losses are
those of the honest clients, in points of their own test samples.
"""

from __future__ import annotations

import argparse
import csv
import io
import statistics
from pathlib import Path

from protofed.config.schema import load_recipe
from protofed.runs.loading import load_run
from protofed.runs.run import Run

STUDY = Path(__file__).resolve().parents[1] / "docs" / "study"
RULES = ("global", "local", "head", "validated")
ATTACKS = {"4 alie": "ALIE", "4 inner_product": "inner product", "4 min_max": "min-max", "4 limit": "limit"}


def accuracy(run: Run, hostile: set[str], rule: str) -> float:
    """Return the accuracy of the clients that are not hostile, in percent of their test samples."""
    last, hits, total = run.rounds[-1], 0.0, 0
    assert last.accuracy is not None
    for place, client in enumerate(run.clients):
        samples = sum(client.test)
        if client.name in hostile or not samples:
            continue
        chosen = rule if rule != "validated" else run.validated_rule(client.name) or run.main_rule
        hits += samples * (last.accuracy.clients[chosen][place] or 0.0)
        total += samples
    return 100 * hits / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--save", action="store_true", help="write docs/study/tables/choosing.csv")
    given = parser.parse_args()
    tree = load_recipe(str(STUDY / "choosing.toml"))["compare"]
    table = [["method", "at the server", "predicted by", "no attacker", *ATTACKS.values()]]

    def run(*words: object) -> Run:
        method, attack, guard, seed = words
        return load_run(given.directory / f"{method}_{str(attack).replace(' ', '-')}_{guard}-seed{seed}")

    for method in tree["methods"]:
        for guard in tree["axes"]["rule"]:
            for rule in RULES:
                calm, losses = [], {attack: list[float]() for attack in ATTACKS}
                for seed in tree["seeds"]:
                    for attack in ATTACKS:
                        attacked = run(method, attack, guard, seed)
                        met = attacked.rounds[-1].attack
                        assert met is not None
                        without = accuracy(run(method, "none", guard, seed), set(met.clients), rule)
                        losses[attack].append(without - accuracy(attacked, set(met.clients), rule))
                    calm.append(accuracy(run(method, "none", guard, seed), set(), rule))
                means = [statistics.fmean(values) for values in (calm, *losses.values())]
                table.append([f"`{method}`", guard, f"`{rule}`", *(f"{value:.1f}" for value in means)])
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(table)
    if given.save:
        (STUDY / "tables" / "choosing.csv").write_text(out.getvalue(), encoding="utf-8")
    print(out.getvalue(), end="")


if __name__ == "__main__":
    main()
