"""Ratios of the releases' benchmarks over time: ``python tools/history.py [benchmarks/history]``.

Reads each release's ``VERSION.json``, written by ``python -m benchmarks --json``, and writes ``README.md`` and
``ratios.svg`` beside them. Machines differ, so seconds are not compared, but ratios within one run are.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.version import Version

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.overhead import BARE, REDUCED
from protofed.analysis.figures.base import log_axis

ROOT = Path(__file__).parents[1] / "benchmarks/history"
HEAD = """# Benchmarks of each release

Ratios of medians within one run of `python -m benchmarks` on one machine. There is one file per release, as
`--json` wrote it. `python tools/history.py` writes this page.

![Ratios by release](ratios.svg)
"""


def ratios(results: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield what is compared, and the ratio, for every benchmark of a file."""
    for row in results.get("overhead", []):
        for variant, to in row["ratios"].items():
            yield from (
                (f"overhead, {row['case']}: {variant} / {other}", value)
                for other, value in to.items()
                if other != variant and variant not in (BARE, REDUCED)
            )
    for row in results.get("peer", []):
        name = f"{row['case']}, {row.get('precision', 'fp32')}"
        yield from ((f"peer, {name}: HtFLlib / {variant}", value) for variant, value in row["ratios"].items())
    per_client = {
        row["clients"]: statistics.median(row["seconds"]) / row["clients"] for row in results.get("scaling", [])
    }
    for clients, value in per_client.items():
        if clients != min(per_client):
            yield f"scaling: a client of {clients:,} / of {min(per_client):,}", value / per_client[min(per_client)]
    for row in results.get("busy", []):
        medians = {load: statistics.median(seconds) for load, seconds in row["seconds"].items()}
        waiting = " ".join(f"{name}={value}" for name, value in row["environment"].items())
        way = " ".join(filter(None, (row["executor"], f"{row['threads'] or 'auto'} threads", waiting)))
        for load, value in medians.items():
            if load != "0":
                yield f"busy, {row['case']}: {way}, beside {load} / beside nothing", value / medians["0"]


def page(folder: Path) -> str:
    """Return the page of a folder of releases, and draw its figure."""
    releases = {
        path.stem: json.loads(path.read_text("utf-8"))
        for path in sorted(folder.glob("*.json"), key=lambda path: Version(path.stem))
    }
    found = {release: dict(ratios(results)) for release, results in releases.items()}
    names = list(dict.fromkeys(name for values in found.values() for name in values))
    lines = [HEAD, "| release | machine |", "|---|---|"]
    for release, results in releases.items():
        machine = results["machine"]
        facts = (machine["processor"], f"{machine['cores']} cores", machine["gpu"], f"torch {machine['torch']}")
        lines.append(f"| {release} | {', '.join(fact for fact in facts if fact)} |")
    lines += ["", f"| ratio | {' | '.join(found)} |", "|---|" + "---|" * len(found)]
    for name in names:
        cells = (f"{values[name]:.2f}" if name in values else "–" for values in found.values())
        lines.append(f"| {name} | {' | '.join(cells)} |")
    _draw(folder / "ratios.svg", found, names)
    return "\n".join(lines) + "\n"


def _draw(path: Path, found: dict[str, dict[str, float]], names: list[str]) -> None:
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "protofed"
    figure, axis = plt.subplots(figsize=(9.5, 0.32 * len(names) + 1), layout="constrained")
    for number, (release, values) in enumerate(found.items()):
        rows = [i for i, name in enumerate(names) if name in values]
        age = (number + 1) / len(found)
        axis.plot(
            [values[names[i]] for i in rows], rows, "o", color="#0072B2", alpha=0.25 + 0.75 * age, label=release
        )
    axis.axvline(1, color="#777777", linewidth=0.8)
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.invert_yaxis()
    shown = [value for values in found.values() for value in values.values()]
    log_axis(axis, "x", (0.9 * min(shown), 1.1 * max(shown)))
    axis.grid(axis="x", alpha=0.3)
    axis.legend(frameon=False)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT)
    folder = parser.parse_args().folder
    (folder / "README.md").write_text(page(folder), "utf-8")


if __name__ == "__main__":
    main()
