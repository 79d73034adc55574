"""Table of studies/speed.md, seconds and bytes until an accuracy: ``papers/tools/until.py [--figure STEM]``.

Reads files of ``python -m benchmarks until --json`` (all of ``benchmarks/until`` if none is named) and finds where
each course reached the accuracies asked for, which may be lower than the one that it was run for.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2]))

from rows import markdown

from benchmarks.htfllib import PEER
from benchmarks.until import OURS, Course, draw_courses, median
from protofed.analysis.figures import save_figure

FILES = sorted((Path(__file__).parents[2] / "benchmarks/until").glob("*.json"), key=lambda path: path.stem)
TARGETS = "0.65,0.85,0.9,0.93"
TIMES = ("rounds", "steps")
HEADINGS = ("case", "accuracy", f"{OURS}: seconds", *TIMES, "MB", f"{PEER}: seconds", *TIMES, "times as long")
NEVER = "–"


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the figures of ``python -m benchmarks until`` in files, each with the ``options`` that were given."""
    rows = []
    for path in paths:
        try:
            found = json.loads(path.read_text("utf-8"))
            rows += [{**row, "options": found["options"]} for row in found["until"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}: no figures of `python -m benchmarks until --json` ({error})") from None
    return rows


def table(rows: Sequence[dict[str, Any]], targets: Sequence[float]) -> str:
    """Return the Markdown table: a line for every case and target, up to its own, that either library reached."""
    lines: list[tuple[str, ...]] = []
    for row in rows:
        name = " ".join([row["case"], *(f"`{option}`" for option in row["options"])])
        asked = [target for target in targets if 0.75 * row["target"] < target <= row["target"]]
        lines += [(name, f"{100 * target:g} %", *cells) for target in asked for cells in _cells(row, target)]
    return markdown(HEADINGS, lines)


def _cells(row: dict[str, Any], target: float) -> Iterator[tuple[str, ...]]:
    ours, peers = (_medians(row["runs"][library], target) for library in (OURS, PEER))
    if (ours["seconds"], peers["seconds"]) == (None, None):
        return
    ratio = "not reached"
    if ours["seconds"] is not None and peers["seconds"] is not None:
        ratio = f"**{peers['seconds'] / ours['seconds']:.1f}**"
    sent = None if ours["bytes"] is None else ours["bytes"] / 1e6
    yield (*_times(ours), _written(sent, "{:,.1f}"), *_times(peers), ratio)


def _medians(runs: Sequence[dict[str, Any]], target: float) -> dict[str, float | None]:
    """Return the medians over seeds of what it took until the target."""
    courses = [Course(run["accuracy"], run["seconds"], run["bytes"], run["steps"]).figures(target) for run in runs]
    names = ("seconds", "rounds", "steps", "bytes")
    return {name: median([course[f"{name}_until"] for course in courses]) for name in names}


def _times(medians: dict[str, float | None]) -> list[str]:
    forms = {"seconds": "{:.1f}", "rounds": "{:.0f}", "steps": "{:,.0f}"}
    return [_written(medians[name], form) for name, form in forms.items()]


def _written(value: float | None, form: str) -> str:
    return NEVER if value is None else form.format(value)


def main() -> None:
    """Print the table, and draw the courses of all files if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=FILES)
    parser.add_argument("--targets", default=TARGETS, help="accuracies, fractions")
    parser.add_argument("--figure", type=Path, help="path without suffix")
    arguments = parser.parse_args()
    try:
        rows = read(arguments.files)
        targets = [float(target) for target in arguments.targets.split(",")]
    except ValueError as error:
        parser.error(str(error))
    print(table(rows, targets))
    if arguments.figure is not None:
        save_figure(draw_courses(rows), arguments.figure)


if __name__ == "__main__":
    main()
