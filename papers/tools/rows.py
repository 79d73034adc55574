"""CSV files, tables and generated pages of the tools beside this one."""

from __future__ import annotations

import csv
import re
import sys
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the lines of a CSV file by the names in its first; none if there is no file."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        out = csv.DictWriter(file, names, lineterminator="\n")
        out.writeheader()
        out.writerows(rows)


def load(kind: type[T], path: Path) -> list[T]:
    """Return the named tuples in a file that :func:`save` wrote, with the types of their fields."""
    types = typing.get_type_hints(kind)
    return [kind(*(types[name](text) for name, text in row.items())) for row in read_rows(path)]


def save(found: Sequence[Any], path: Path) -> None:
    """Write the names of the fields, and one line per named tuple."""
    write_rows(path, found[0]._fields, (row._asdict() for row in found))


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]], align: str = "") -> str:
    """Return a Markdown table; the columns marked ``r`` in ``align`` are right-aligned."""
    rule = "".join("|---:" if mark == "r" else "|---" for mark in align.ljust(len(head)))
    head, *lines = (f"| {' | '.join(cells)} |" for cells in (head, *rows))
    return "\n".join([head, f"{rule}|", *lines])


def fill(page: str, name: str, content: str) -> str:
    """Return a page with the text between the marks of ``name`` replaced."""
    parts = re.split(rf"(<!-- {name}: made by [^>]*-->|<!-- end of {name} -->)", page)
    if len(parts) != 5:
        sys.exit(f"the page needs one <!-- {name}: made by TOOL --> and one <!-- end of {name} -->")
    return "".join([*parts[:2], f"\n\n{content.strip()}\n\n", *parts[3:]])


def update(pages: Mapping[Path, str], check: bool) -> None:
    """Write the pages, or exit with an error if one is out of date."""
    for path, text in pages.items():
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path} is out of date: run python papers/tools/{Path(sys.argv[0]).name}")
