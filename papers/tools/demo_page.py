"""What ``docs/ui.md`` says of ``protofed demo``, measured: ``papers/tools/demo_page.py [--run]``.

``--run`` runs the demonstrations and writes ``studies/demo.csv``. The tables are printed from that file.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import rows
from protofed_lab.demo.engine import LiveFederation, federated_digits
from protofed_lab.demo.setup import Chosen, Setup, usual

FILE = Path(__file__).resolve().parents[1] / "studies/demo.csv"
SEEDS = range(5)
ROUNDS = 40


class Demonstration(NamedTuple):
    """One side of a demonstration after its last round: accuracies in fractions, bytes up and down."""

    skew: str
    method: str
    options: str
    seed: int
    rounds: int
    accuracy: float
    unseen: float | None
    bytes: int


MARGINS = (0.0, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
CASES: list[tuple[str, str, dict[str, Any], int]] = [
    ("paired", "fedproto", {}, ROUNDS),
    *(("paired", "fedtgp", {"margin": margin}, ROUNDS) for margin in MARGINS),
    ("paired", "protonorm", {"gamma": 10.0}, ROUNDS),
    ("paired", "protonorm", {"gamma": 10.0, "lambda": 0.1}, ROUNDS),
    *(("apart", method, {}, 1) for method in ("local_lda", "fedlda")),
    *(("apart", method, {}, 10) for method in ("local", "beacon")),
    *(("apart", method, {}, ROUNDS) for method in ("fixed_etf", "fedproto", "fedtgp", "protonorm")),
]
"""Division of the digits, method, options that are not as usual, and rounds."""


def shown(skew: str, method: str, options: dict[str, Any], rounds: int, seed: int) -> Demonstration:
    """Return what the page shows of a method after some rounds."""
    setup = Setup(skew=skew, seed=seed)  # type: ignore[arg-type]
    chosen = Chosen(method, usual(method).options | options)
    live = LiveFederation(setup, chosen, federated_digits(setup))
    for _ in range(rounds):
        live.step()
    view = live.view([(0, 0)])
    given = " ".join(f"{name}={value:g}" for name, value in options.items())
    return Demonstration(skew, method, given, seed, rounds, view.accuracy, view.unseen, view.bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true", help="run the demonstrations and write the file")
    if parser.parse_args().run:
        rows.save([shown(*case, seed) for case in CASES for seed in SEEDS], FILE)
    for row in rows.read_rows(FILE):
        print(*row.values(), sep="\t")


if __name__ == "__main__":
    main()
