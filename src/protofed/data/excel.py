"""Conversion of the first sheet of an Excel file (``.xlsx``) to a table of texts, as a CSV file is read."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Iterable, Sequence
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from protofed.data.checks import open_file
from protofed.data.npz import open_zip
from protofed.errors import ConfigError, DataError
from protofed.untrusted import limits
from protofed.untrusted.limits import Budget

_SPAN = 2**22
"""Cells that a small file may span, most of them empty."""
_TOO_WIDE = "its first sheet spans too many cells: delete empty rows, or save it as CSV"
_EXPANSION = 12
"""Bytes of memory per byte of XML: a cell takes at least some 20 bytes there, and as a text some 60."""


def texts_of(path: Path, missing: Collection[str], budget: Budget) -> Any:
    """Return the first sheet of a file as a ``pyarrow.Table`` of texts; its first row has the names.

    Args:
        missing: Texts that stand for a missing value.
        budget: Memory budget charged for the sheet.

    Raises:
        ConfigError: If openpyxl is missing.
        DataError: If the file is unreadable or too large, or a column has no name.
    """
    import pyarrow as pa

    try:
        from openpyxl import load_workbook
    except ImportError:
        raise ConfigError(f"{path}: Excel files need openpyxl: pip install 'protofed[excel]'") from None
    with open_file(path) as file:
        try:
            size = sum(entry.file_size for entry in open_zip(file).infolist())
        except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
            raise DataError(f"{path}: not a readable Excel file (.xlsx)") from None
        if size > limits.CSV_BYTES:
            raise DataError(f"{path}: holds {size} bytes, more than {limits.CSV_BYTES}")
        budget.take(_EXPANSION * size, path)
        file.seek(0)
        try:
            book = load_workbook(file, read_only=True, data_only=True)
            sheet = book.worksheets[0]
            sheet.reset_dimensions()  # what a file says of its size may be wrong, and rows beyond it would be lost
            span = max(size, _SPAN)
            rows = _rows(path, sheet.iter_rows(values_only=True), span, budget)
        except DataError:
            raise
        except Exception as error:  # openpyxl raises what it comes across in damaged XML
            raise DataError(f"{path}: not a readable Excel file ({type(error).__name__})") from None
    while rows and not any(rows[-1]):
        rows.pop()
    if not rows:
        raise DataError(f"{path}: its first sheet is empty: expected a header and rows")
    width = max((place for row in rows for place, cell in enumerate(row, 1) if cell), default=0)
    if width >= limits.COLUMNS or len(rows) > limits.SAMPLES:
        raise DataError(f"{path}: has more than {limits.COLUMNS} columns or {limits.SAMPLES} rows")
    if width * len(rows) > span:
        raise DataError(f"{path}: {_TOO_WIDE}")
    names, *rows = [[*row, *[None] * width][:width] for row in rows]
    if not all(names):
        raise DataError(f"{path}: column {names.index(None) + 1} of the first sheet has no name in the first row")
    cells = [[None if row[place] in missing else row[place] for row in rows] for place in range(width)]
    return pa.table([pa.array(column, pa.string()) for column in cells], names=names)


def _rows(path: Path, found: Iterable[Sequence[Any]], span: int, budget: Budget) -> list[list[str | None]]:
    """Return the rows of a sheet as texts.

    A few bytes can announce millions of empty cells, and a text that is stored once can stand in all of them.

    Args:
        span: Most cells, empty ones included.
    """
    rows: list[list[str | None]] = []
    for row in found:
        span -= max(len(row), 1)
        if len(row) >= limits.COLUMNS or len(rows) > limits.SAMPLES or span < 0:
            raise DataError(f"{path}: {_TOO_WIDE}")
        texts = list(map(_text, row))
        budget.take(8 * len(texts) + 2 * sum(len(text) for text in texts if text), path)
        rows.append(texts)
    return rows


def _text(value: Any) -> str | None:
    """Return a cell as a CSV file would have it."""
    if value is None or isinstance(value, str):
        return (value or "").strip() or None
    if isinstance(value, datetime) and value.time() == time():
        value = value.date()
    if isinstance(value, (date, datetime)):
        return value.isoformat()
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)
