"""Pages of measured figures in studies: ``papers/tools/measurements.py [--check]``.

``studies/measurements.toml`` has their texts, in which a line ``{{NAME}}`` stands for a table: one that a tool
of this folder makes of the figures of single runs (:data:`MADE`), or the recorded ``studies/tables/NAME.csv``.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import closed_forms
import closed_privacy
import domain_shift
import privacy_table
import until

STUDY = Path(__file__).resolve().parents[1] / "studies"
BUDGETS = sorted(STUDY.glob("privacy/*.csv"))


def _budgets(path: Path) -> str:
    return privacy_table.table(privacy_table.results([path]))


MADE: dict[str, Callable[[], str]] = {
    "closed-forms": closed_forms.table,
    "closed-privacy": lambda: closed_privacy.table(closed_privacy.read(STUDY / "closed/privacy.csv")),
    "domain-shift": lambda: domain_shift.table(domain_shift.read(STUDY / "closed/domain-shift.csv")),
    "until": lambda: until.table(until.read(until.FILES), [float(target) for target in until.TARGETS.split(",")]),
    **{f"epsilon-{path.stem}": partial(_budgets, path) for path in BUDGETS},
}
"""Tables that are made of the figures of single runs."""


def table(name: str) -> str:
    """Return a table as Markdown."""
    if name in MADE:
        return MADE[name]()
    with (STUDY / "tables" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        head, *rows = csv.reader(file)
    return "\n".join([_line(head), "|---" * len(head) + "|", *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def pages() -> dict[Path, str]:
    """Return the text of every page."""
    texts = tomllib.loads((STUDY / "measurements.toml").read_text(encoding="utf-8"))
    return {
        STUDY / f"{name}.md": f"# {page['title']}\n\n"
        + re.sub(r"^\{\{(.+)\}\}$", lambda found: table(found[1]), page["text"].strip(), flags=re.M)
        + "\n"
        for name, page in texts.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    check = parser.parse_args().check
    for path, text in pages().items():
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path} is out of date: run python papers/tools/measurements.py")


if __name__ == "__main__":
    main()
