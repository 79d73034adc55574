"""CSV files of measured runs, one named tuple a line, for the tools beside this one."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


def save(found: Sequence[NamedTuple], path: Path) -> None:
    """Write the names of the fields, and one line per tuple."""
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(found[0]._fields)
        out.writerows(found)
