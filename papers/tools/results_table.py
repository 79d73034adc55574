"""Print a comparison as a Markdown table: ``papers/tools/results_table.py DIRECTORY``."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

from protofed.runs.loading import load_runs
from protofed.runs.run import Run
from protofed.runs.summary import Outcome
from protofed.text import mean_std, size

RULES = ("head", "global_model", "local", "global", "global_own", "etf")


def row(runs: Sequence[Run]) -> list[str]:
    outcomes = [run.outcome for run in runs]
    rounds = outcomes[0].rounds

    def mean(value: Callable[[Outcome], float]) -> float:
        return statistics.fmean(value(outcome) for outcome in outcomes)

    def accuracy(rule: str) -> str:
        values = [o.accuracy[rule].best for o in outcomes if rule in o.accuracy]
        return mean_std(values).removesuffix("%")

    def parameters(way: str) -> str:
        return f"{mean(lambda o: o.communication.parameters_per_round[way]):,.0f}"

    sent = mean(lambda o: o.communication.sent / rounds)
    # Take the median round of each run: on a shared machine, single rounds can take several times as long.
    seconds = statistics.fmean(statistics.median(r.seconds["total"] for r in run.rounds) for run in runs)
    return [runs[0].method, *map(accuracy, RULES), *map(parameters, ("up", "down")), size(sent), f"{seconds:.2f}"]


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
