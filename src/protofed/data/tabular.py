"""Conversion of CSV, Excel and parquet files to listings. Texts are typed here, so that errors name rows."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from protofed.data import apart
from protofed.data.arrow import choose, from_arrow
from protofed.data.checks import check_columns, open_file
from protofed.data.options import Columns
from protofed.data.pool import Listing
from protofed.data.tables import SPREADSHEETS
from protofed.errors import ConfigError, DataError
from protofed.untrusted import limits
from protofed.untrusted.limits import Budget

SUFFIXES = SPREADSHEETS
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
MISSING = ("", "?", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "-nan", "NULL", "null", "None")
"""Texts that stand for a missing value."""
_BLOCK_BYTES = 2**22


def read_csv(files: Sequence[Path], columns: Columns, where: str, budget: Budget) -> Listing:
    """Return the rows of several files, in order, as one listing.

    The delimiter is that of ``, ; tab |`` which the header has most often. A decimal comma is understood where the
    delimiter is another one.
    """
    import pyarrow as pa

    def read(file: Path) -> tuple[Any, list[str]]:
        table = read_texts(file, columns, budget)
        return table, table.column_names

    tables, _ = read_each(files, read)
    sources = [(str(file), len(table)) for file, table in zip(files, tables, strict=True)]
    return from_arrow(_convert_columns(pa.concat_tables(tables), columns.as_texts), columns, where, budget, sources)


def read_each(files: Sequence[Path], read: Callable[[Path], tuple[Any, list[str]]]) -> tuple[list[Any], list[str]]:
    """Return the tables of the files of one data set, and the names of their columns, which have to be the same."""
    tables: list[Any] = []
    first: list[str] = []
    for file in files:
        table, names = read(file)
        first = first or names
        if names != first:
            raise DataError(
                f"{file}: columns {', '.join(names)}, but {files[0].name} has {', '.join(first)}: "
                "files of one data set need the same columns"
            )
        tables.append(table)
        if sum(map(len, tables)) > limits.SAMPLES:
            raise DataError(f"{file}: more than {limits.SAMPLES} rows in all")
    return tables, first


def parse_csv(path: Path, columns: Columns, texts: Collection[str], budget: Budget) -> Any:
    """Return a file as a ``pyarrow.Table`` with a type for each column, as :func:`read_csv` reads it."""
    return _convert_columns(read_texts(path, columns, budget), {*columns.as_texts, *texts})


def read_texts(path: Path, columns: Columns, budget: Budget) -> Any:
    """Return all columns of a file as texts, with decimal points, in a ``pyarrow.Table``."""
    missing = (*MISSING, *columns.na_values)
    if path.suffix.lower() == ".xlsx":
        if find_spec("python_calamine") is None:
            raise ConfigError(f"{path}: Excel files need python-calamine: pip install 'protofed[excel]'")
        table = _without(missing, apart.read_table("Excel", path, budget))
    else:
        table = _texts(path, missing, budget, columns.encoding)
    names = columns.called(table.column_names)
    check_columns(names, str(path))
    return table.rename_columns(names)


def in_utf8(path: Path) -> bool:
    """Return whether a CSV file is read without ``data.encoding``."""
    with open_file(path) as file:
        start = file.read(2)
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while block := start or file.read(_BLOCK_BYTES):
                decoder.decode(block)
                start = b""
            decoder.decode(b"", final=True)
        except UnicodeDecodeError:
            file.seek(0)
            return file.read(2) in _UTF16
    return True


def _texts(path: Path, missing: Sequence[str], budget: Budget, encoding: str) -> Any:
    """Return all columns of a CSV file as texts, with decimal points."""
    import pyarrow as pa

    with open_file(path) as file:
        if file.seek(0, 2) > limits.CSV_BYTES:
            raise DataError(f"{path}: has {file.tell()} bytes, more than {limits.CSV_BYTES}")
        file.seek(0)
        utf16 = file.read(2) in _UTF16
    used = "utf-16" if utf16 else "utf-8" if not encoding or in_utf8(path) else encoding
    table = apart.read_table("CSV", path, budget, encoding=used)
    delimiter = table.schema.metadata[b"delimiter"]
    table = _without(missing, table)
    if delimiter != b",":
        table = pa.table([_with_points(column) for column in table.columns], names=table.column_names)
    return table


def _without(missing: Sequence[str], table: Any) -> Any:
    import pyarrow as pa

    return pa.table([_trim(column, missing) for column in table.columns], names=table.column_names)


def _trim(column: Any, missing: Sequence[str]) -> Any:
    """Return texts without white space around them, and null for those that stand for a missing value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    trimmed = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(trimmed, pa.array(missing)), pa.scalar(None, pa.string()), trimmed)


def _with_points(column: Any) -> Any:
    """Return a column with decimal points in place of the commas of its numbers."""
    import pyarrow.compute as pc

    return pc.replace_substring_regex(column, r"^([+-]?\d+),(\d+)([eE][+-]?\d+)?$", r"\1.\2\3")


def with_nothing(table: Any, columns: Columns, texts: Collection[str] = ()) -> Any:
    """Return a table read as a CSV file is, if some of its texts stand for a missing value (``data.na_values``)."""
    return as_texts(table, {*columns.as_texts, *texts}, columns.na_values) if columns.na_values else table


def as_texts(table: Any, texts: Collection[str], na_values: Collection[str] = ()) -> Any:
    """Return a table whose columns of texts have the values and types that they would have in a CSV file.

    As in one with semicolons, a comma between digits is a decimal comma.
    """
    import pyarrow as pa

    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = _trim(column.cast(pa.string()), [*MISSING, *na_values])
            column = column if name in texts else _convert_column(_with_points(column))
        columns[name] = column
    return pa.table(columns, metadata=table.schema.metadata)


def _convert_columns(table: Any, texts: Collection[str]) -> Any:
    """Return a table of texts with a type for each column except those that stay text."""
    import pyarrow as pa

    names = table.column_names
    typed = [c if n in texts else _convert_column(c) for n, c in zip(names, table.columns, strict=True)]
    return pa.table(typed, names=names)


def _convert_column(column: Any) -> Any:
    """Return a text column as integers, numbers or truth values if all its values are, or else as it is."""
    import pyarrow as pa

    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column))])
    for kind in (pa.int64(), pa.float64(), pa.bool_()):
        try:
            return column.cast(kind)
        except pa.ArrowException:
            continue
    return column


def read_parquet(files: Sequence[Path], columns: Columns, where: str, budget: Budget) -> Listing:
    """Return the rows of several files, in order, as one listing."""
    import pyarrow as pa

    tables, names = read_each(files, lambda file: parse_parquet(file, columns, budget))
    try:
        table = with_nothing(pa.concat_tables(tables), columns)
        listing = from_arrow(table, replace(columns, drop=()), where, budget)
        return replace(listing, names=tuple(names))
    except pa.ArrowException as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{where}: files of one data set differ in column types ({reason})") from None


def parse_parquet(path: Path, columns: Columns, budget: Budget) -> tuple[Any, list[str]]:
    """Return the needed columns of a file as a ``pyarrow.Table``, and the names of all."""
    import pyarrow as pa

    schema = apart.read_schema(path)
    called = columns.called(schema.names)
    meant = pa.schema([f.with_name(n) for f, n in zip(schema, called, strict=True)], schema.metadata)
    chosen = choose(meant, columns, str(path)).names
    names = [own for own, name in zip(schema.names, called, strict=True) if name in chosen]
    table = apart.read_table("parquet", path, budget, names=names)
    return table.rename_columns(columns.called(table.column_names)).replace_schema_metadata(schema.metadata), called
