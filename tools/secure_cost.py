"""Measure what secure aggregation costs in bytes and seconds, for docs/privacy.md.

python tools/secure_cost.py
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

import protofed
from protofed.formats import size

CASES = {
    "`fedproto`, d = 64, 20 clients": {"method.name": "fedproto"},
    "`fedavg`, `mlp`, 20 clients": {"method.name": "fedavg", "model.name": "mlp"},
}
ROUNDS = 3


def main() -> None:
    """Print one row per case: a round of 20 clients, plain and secure."""
    print("| | up, plain | up, secure | down, plain | down, secure | aggregation, plain | secure |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for title, chosen in CASES.items():
        cells = []
        with tempfile.TemporaryDirectory() as folder:
            for secure in (False, True):
                overrides = {
                    **chosen,
                    "rounds": ROUNDS,
                    "robust.rule": "none",
                    "secure.aggregation": secure,
                    "execution.executor": "sequential",
                }
                run = protofed.run("quickstart", overrides, out=Path(folder) / str(secure))
                # The first round sends nothing down, and loads the library.
                rounds = run.rounds[1:]
                seconds = statistics.median(r["seconds"]["aggregation"] for r in rounds)
                sent = [statistics.fmean(r["bytes"][way] for r in rounds) for way in ("up", "down")]
                cells.append([*sent, seconds])
        plain, secured = cells
        shown = [size(n) for pair in zip(plain[:2], secured[:2], strict=True) for n in pair]
        times = [f"{plain[2] * 1000:.0f} ms", f"{secured[2]:.2f} s"]
        print(f"| {title} |", " | ".join([*shown, *times]), "|")


if __name__ == "__main__":
    main()
