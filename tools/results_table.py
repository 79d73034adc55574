"""Print a comparison as the Markdown table of docs/results.md: ``python tools/results_table.py DIRECTORY``."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from protofed.analysis import RunData, load_runs
from protofed.analysis.style import mean_std, size

RULES = ("head", "global_model", "local", "global", "global_own", "etf")


def row(runs: Sequence[RunData]) -> list[str]:
    facts = [run.facts for run in runs]
    rounds = facts[0]["rounds"]

    def mean(value: Callable[[dict], float]) -> float:
        return statistics.fmean(value(f) for f in facts)

    def accuracy(rule: str) -> str:
        values = [f["accuracy"][rule]["best"] for f in facts if rule in f["accuracy"]]
        return mean_std(values).removesuffix("%")

    traffic = [
        f"{mean(lambda f, w=way: f['communication'][f'parameters_{w}_per_round']):,.0f}" for way in ("up", "down")
    ]
    sent = mean(lambda f: sum(f["communication"][f"bytes_{way}_total"] for way in ("up", "down")) / rounds)
    # The median round of each run: on a shared machine single rounds can take several times as long.
    seconds = statistics.fmean(statistics.median(r["seconds"]["total"] for r in run.rounds) for run in runs)
    return [runs[0].method, *map(accuracy, RULES), *traffic, size(sent), f"{seconds:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    runs = load_runs([parser.parse_args().directory])
    headings = ["method", *RULES, "parameters up", "down", "bytes per round", "seconds per round"]
    print("| " + " | ".join(headings) + " |")
    print("|" + "---|" * len(headings))
    for method in dict.fromkeys(run.method for run in runs):
        print("| " + " | ".join(row([run for run in runs if run.method == method])) + " |")


if __name__ == "__main__":
    main()
