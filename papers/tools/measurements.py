"""Pages of measured figures in studies: ``papers/tools/measurements.py [--check]``.

``studies/measurements.toml`` has their texts, in which a line ``{{NAME}}`` stands for a table: one that a tool
of this folder makes of the figures of single runs (:data:`MADE`), or the recorded ``studies/tables/NAME.csv``.
"""

from __future__ import annotations

import argparse
import csv
import re
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import closed_privacy
import domain_shift
import privacy_table
from rows import fill, load, markdown, read_rows, update

STUDY = Path(__file__).resolve().parents[1] / "studies"
BUDGETS = sorted(STUDY.glob("privacy/*.csv"))


MADE: dict[str, Callable[[], str]] = {
    "closed-privacy": lambda: closed_privacy.table(load(closed_privacy.Result, STUDY / "closed/privacy.csv")),
    "domain-shift": lambda: domain_shift.table(read_rows(STUDY / "closed/domain-shift.csv")),
    **{f"epsilon-{path.stem}": partial(privacy_table.saved, path) for path in BUDGETS},
}
"""Tables that are made of the figures of single runs."""


def table(name: str) -> str:
    """Return a table as Markdown."""
    if name in MADE:
        return MADE[name]()
    head, *rows = csv.reader((STUDY / "tables" / f"{name}.csv").read_text(encoding="utf-8").splitlines())
    return markdown(head, rows)


FILLED = ("felt", "rounds", "peer")
"""Tables in docs/performance.md."""


def pages() -> dict[Path, str]:
    """Return the text of every page."""
    performance = STUDY.parents[1] / "docs/performance.md"
    filled = performance.read_text(encoding="utf-8")
    for name in FILLED:
        filled = fill(filled, name, table(name))
    texts = tomllib.loads((STUDY / "measurements.toml").read_text(encoding="utf-8"))
    return {performance: filled} | {
        STUDY / f"{name}.md": f"# {page['title']}\n\n"
        + re.sub(r"^\{\{(.+)\}\}$", lambda found: table(found[1]), page["text"].strip(), flags=re.M)
        + "\n"
        for name, page in texts.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    update(pages(), parser.parse_args().check)


if __name__ == "__main__":
    main()
