"""Reading of a folder as it is: its sites, and of each column what a person would see in a spreadsheet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from protofed.data import DataOptions, datasets
from protofed.data.arrow import INDEX
from protofed.data.dates import day, format_value
from protofed.data.federation import FORMS
from protofed.data.images import SUFFIXES as IMAGES
from protofed.data.images import visible
from protofed.data.local import one_data_set
from protofed.data.options import Columns
from protofed.data.tables import category, is_number, number_row
from protofed.data.tabular import SUFFIXES as DELIMITED
from protofed.data.tabular import parse_parquet, read_texts, with_nothing
from protofed.errors import DataError
from protofed.untrusted.limits import Budget

TABLES = (".parquet", *DELIMITED)
ONE_TABLE = "table"  #: Name of the only table of a folder, before its sites are known
NESTED = (
    "of its own, only folders: a file per sample is read of images alone; put samples into one "
    "table with a column of classes, or series into one .npz file (x: samples × channels × length, y: classes)"
)


@dataclass(frozen=True)
class ColumnScan:
    """A column of one site as texts."""

    texts: Sequence[str | None]  #: ``n`` values, None where there is none
    rows: Sequence[int]  #: Row of each value, for messages

    @cached_property
    def present(self) -> list[str]:
        """The values that are there."""
        return [text for text in self.texts if text is not None]

    @cached_property
    def distinct(self) -> dict[str, int]:
        """Number of each value, in the form that categories have."""
        return Counter(map(category, self.present))

    @cached_property
    def odd(self) -> dict[str, int]:
        """Texts that are no numbers, with the row of the first of each."""
        found: dict[str, int] = {}
        for place, text in enumerate(self.texts):
            if text is not None and not is_number(text):
                found.setdefault(text, self.rows[place])
        return found

    @cached_property
    def numeric(self) -> bool:
        """Whether more than half of the values are numbers."""
        numbers = sum(map(is_number, self.present))
        return bool(self.present) and 2 * numbers > len(self.present)

    @cached_property
    def numbers(self) -> np.ndarray:
        """The values that are numbers, ``(m,)`` float64."""
        return np.array([float(text) for text in self.present if is_number(text)])

    @property
    def missing(self) -> int:
        """Number of values that are not there."""
        return len(self.texts) - len(self.present)

    def at(self, places: Sequence[int]) -> ColumnScan:
        """Return the values at some places."""
        return ColumnScan([self.texts[place] for place in places], [self.rows[place] for place in places])

    def rename(self, names: Mapping[str, str]) -> ColumnScan:
        """Return the column with names in place of others."""
        texts = [None if text is None else names.get(category(text), text) for text in self.texts]
        return replace(self, texts=texts) if names else self

    def dates(self, month_first: bool = False) -> int:
        """Return how many of the values are dates."""
        return sum(day(text, month_first) is not None for text in self.present)


@dataclass(frozen=True)
class SiteTable:
    """The table of one site, with all its splits."""

    site: str
    file: Path
    columns: Mapping[str, ColumnScan]
    tested: int | None = None  #: Rows of a split for testing; None if none is set aside

    @property
    def rows(self) -> int:
        """Number of rows."""
        return max((len(column.texts) for column in self.columns.values()), default=0)


@dataclass(frozen=True)
class DataFolder:
    """What a folder holds."""

    path: Path
    kind: str  #: ``tables``; ``images`` or ``arrays`` in files of their own; ``samples`` in columns of one data set
    #: Path of each site, a file or folder; one, ``ONE_TABLE``, where the sites are in a column
    sites: Mapping[str, Path]
    options: Mapping[str, Any]
    unread: tuple[str, ...] = ()


def look(path: Path) -> DataFolder:
    """Return what a folder holds, by the names of its files.

    Raises:
        DataError: If there is nothing to learn from.
    """
    source: dict[str, Any] = {"data.source": "path", "data.path": str(path.resolve())}
    if path.is_file() and path.suffix.lower() in TABLES:
        return DataFolder(path, "tables", {ONE_TABLE: path}, source)
    if not path.is_dir() and str(path) in datasets:
        return DataFolder(path, "samples", {ONE_TABLE: path}, {"data.source": str(path)})
    if not path.is_dir():
        raise DataError(f"{path}: no such folder: expected one with a file or folder per site, or one table")
    if one_data_set(path):
        return DataFolder(path, "tables", {ONE_TABLE: path}, source)
    home = path / "clients" if (path / "clients").is_dir() else path
    kinds = {entry: _kind(entry) for entry in visible(home)}
    data = [entry for entry, kind in kinds.items() if kind]
    unread = tuple(e.name for e, kind in kinds.items() if not kind and e.suffix != ".toml")
    found = {kinds[entry] for entry in data}
    if not found:
        raise DataError(f"{path}: holds no table ({', '.join(TABLES)}), no .npz file and no folder of images")
    if len(found) > 1:
        shown = ", ".join(f"{e.name} ({kinds[e]})" for e in data[:8])
        raise DataError(f"{home}: sites hold different things, {shown}: keep one kind of data in the folder")
    (kind,) = found
    if kind == "classes":
        return DataFolder(path, "images", {path.name: path}, source, unread)
    if len(data) == 1 and home is path and data[0].is_file():
        options = {**source, "data.path": str(data[0].resolve())}
        return DataFolder(data[0], kind, {ONE_TABLE: data[0]}, options, unread)
    if home is path:
        source["data.options.sites"] = True
    return DataFolder(path, kind, {e.name if e.is_dir() else e.stem: e for e in data}, source, unread)


def _kind(path: Path, depth: int = 0) -> str:
    """Return what a file or folder of a site holds: tables, arrays, images; ``classes`` for a folder of images."""
    if path.is_file():
        suffix = path.suffix.lower()
        return "tables" if suffix in TABLES else "arrays" if suffix == ".npz" else ""
    inside = visible(path)
    if any(e.suffix.lower() in IMAGES for e in inside[:20]):
        return "classes"
    kinds = [_kind(e, depth + 1) for e in inside[:20]] if depth < 3 else []
    found = next((kind for kind in kinds if kind), "")
    return "images" if found == "classes" else found


def read_sheets(folder: DataFolder, data: DataOptions) -> tuple[list[SiteTable], list[tuple[str, str]]]:
    """Return the tables of all sites, and for each file that cannot be read its site and why."""
    found: list[SiteTable] = []
    wrong: list[tuple[str, str]] = []
    budget = data.budget()
    for site, path in folder.sites.items():
        files = files_of(path)
        if not files:
            wrong.append((site, f"{path}: holds no table {NESTED}"))
        parts: dict[str, list[str | None]] = {}
        places: list[int] = []
        rows, tested = 0, None
        for file in files:
            try:
                table = _texts(file, data, budget)
            except DataError as error:
                wrong.append((site, str(error)))
                continue
            for name, values in table.items():
                parts.setdefault(name, [None] * rows).extend(values)
            added = max(map(len, table.values()), default=0)
            rows += added
            places += range(number_row(str(file), 0), number_row(str(file), added))
            if len(files) > 1 and file.stem == "test" and site != ONE_TABLE:
                tested = added
            for values in parts.values():
                values += [None] * (rows - len(values))
        if parts:
            columns = {name: ColumnScan(v, places) for name, v in parts.items() if not INDEX.fullmatch(name)}
            found.append(SiteTable(site, files[0], columns, tested))
    return found, wrong


def files_of(path: Path) -> list[Path]:
    """Return the files with the tables of a site."""
    if path.is_file():
        return [path]
    return one_data_set(path) or [entry for entry in visible(path) if entry.suffix.lower() in FORMS]


def divide(sheet: SiteTable, column: str) -> list[SiteTable]:
    """Return the sites that a column of a table names."""
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(sheet.columns[column].texts):
        if name is not None:
            rows.setdefault(category(name), []).append(row)
    others = {name: scan for name, scan in sheet.columns.items() if name != column}
    return [
        replace(sheet, site=site, columns={name: scan.at(chosen) for name, scan in others.items()})
        for site, chosen in sorted(rows.items())
    ]


def _texts(file: Path, data: DataOptions, budget: Budget) -> dict[str, list[str | None]]:
    asked = Columns.of(data)
    if file.suffix.lower() in DELIMITED:
        table = read_texts(file, asked, budget)
        return {name: table[name].to_pylist() for name in table.column_names}
    whole = Columns(labelled=False, anywhere=True)
    table = with_nothing(parse_parquet(file, whole, budget)[0], asked)
    return {
        name: [None if v is None or v != v else format_value(v).strip() or None for v in table[name].to_pylist()]
        for name in table.column_names
    }
