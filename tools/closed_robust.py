"""One hostile client of twenty against FedLDA's sums: ``python tools/closed_robust.py FILE [--run BOUND]``.

``--run`` measures ``quickstart`` and adds lines to FILE, a CSV, under the name BOUND; the table goes to standard
output. The bound of the library is ``now``; ``before`` was measured with the version that had none.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent))

from rows import save

from protofed.config.schema import apply_overrides, load_recipe, resolve
from protofed.experiments.assemble import assemble
from protofed.experiments.loading import load_data
from protofed.text import mean_std

KINDS, SAMPLES, SEEDS = ("sign_flip", "random", "huge", "swapped_labels"), (0, 10**6), (0, 1, 2)
SMALL = {"encoder.name": "random", "encoder.dim": 64, "data.clients": 20, "evaluation.on": "union"}


class Result(NamedTuple):
    """Accuracies of one run, as fractions: the honest clients' own, and the server's model on all classes."""

    bound: str
    kind: str
    samples: int
    seed: int
    own: float
    union: float


def measured(bound: str) -> Iterator[Result]:
    """Yield all results with the rule ``clip``."""
    for seed in SEEDS:
        recipe = apply_overrides(load_recipe("quickstart"), SMALL)
        data = load_data(resolve(recipe, method="fedlda", seed=seed))
        for kind, samples in [("none", 0), *((kind, samples) for kind in KINDS for samples in SAMPLES)]:
            attack = {"attack.kind": kind, "attack.clients": 1, "attack.samples": samples} if kind != "none" else {}
            federation, _ = assemble(resolve(apply_overrides(recipe, attack), method="fedlda", seed=seed), data)
            with closing(federation.executor):
                record = list(federation.run())[-1]
            assert record.accuracy
            assert record.union
            hostile = record.attack.clients if record.attack else ()
            each = zip(federation.names, record.accuracy.clients["head"], strict=True)
            own = fmean(a for name, a in each if a is not None and name not in hostile)
            yield Result(bound, kind, samples, seed, own, record.union.weighted["global_model"])


def table(found: list[Result]) -> str:
    """Return a Markdown table of means and standard deviations over seeds."""
    lines = ["| attack | states | own, before | union, before | own | union |", "|---|---|---:|---:|---:|---:|"]
    for kind, samples in dict.fromkeys((r.kind, r.samples) for r in found):
        cells = []
        for bound in ("before", "now"):
            for part in ("own", "union"):
                each = [getattr(r, part) for r in found if (r.bound, r.kind, r.samples) == (bound, kind, samples)]
                cells.append(mean_std(each).removesuffix("%").strip() if each else "–")
        states = f"{samples:,} samples" if samples else "its own number"
        lines.append(f"| `{kind}` | {states} | {' | '.join(cells)} |")
    return "\n".join(lines)


def read(path: Path) -> list[Result]:
    """Return the results in a file."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [(r[0], r[1], int(r[2]), int(r[3]), float(r[4]), float(r[5])) for r in list(csv.reader(file))[1:]]
    return [Result(*row) for row in rows]


def main() -> None:
    """Measure or read, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--run", metavar="BOUND")
    given = parser.parse_args()
    found = read(given.file) if given.file.exists() else []
    if given.run:
        found = [*found, *measured(given.run)]
        save(found, given.file)
    print(table(found))


if __name__ == "__main__":
    main()
