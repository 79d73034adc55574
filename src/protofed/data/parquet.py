"""Conversion of parquet files to listings; their memory footprint is checked before they are decompressed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from protofed.data.arrow import choose, from_arrow
from protofed.data.checks import open_file
from protofed.data.columns import Columns
from protofed.data.delimited import with_nothing
from protofed.data.pages import Footprint, footprint, read_summary
from protofed.data.pool import Listing
from protofed.errors import DataError
from protofed.untrusted import limits
from protofed.untrusted.limits import Budget

T = TypeVar("T")

_PORTION = 64 * limits.MiB
"""Maximum bytes decompressed at once; a value stored once in a file may be shared by many rows."""
_ROWS = 2**16


def read_parquet(files: Sequence[Path], columns: Columns, where: str, budget: Budget) -> Listing:
    """Return the rows of several files, in order, as one listing."""
    import pyarrow as pa

    tables: list[Any] = []
    first: list[str] = []
    for file in files:
        table, names = parse_parquet(file, columns, budget, sum(map(len, tables)))
        first = first or names
        if names != first:
            raise DataError(
                f"{file}: columns {', '.join(names)}, but {files[0].name} has {', '.join(first)}: "
                "files of one data set need the same columns"
            )
        tables.append(table)
    try:
        table = with_nothing(pa.concat_tables(tables), columns)
        listing = from_arrow(table, replace(columns, drop=()), where, budget)
        return replace(listing, names=tuple(first))
    except DataError:
        raise
    except pa.ArrowException as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{where}: files of one data set differ in column types ({reason})") from None
    except _damage() as error:
        raise DataError(f"{where}: not a readable parquet file ({type(error).__name__})") from None


def parquet_schema(path: Path) -> Any:
    """Return the ``pyarrow.Schema`` of a file."""
    import pyarrow.parquet as pq

    try:
        with open_file(path) as file:
            return pq.read_schema(file)
    except _damage() as error:
        raise DataError(f"{path}: not a readable parquet file ({type(error).__name__})") from None


def _damage() -> tuple[type[Exception], ...]:
    import pyarrow as pa

    return (pa.ArrowException, OSError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError)


def parse_parquet(path: Path, columns: Columns, budget: Budget, before: int = 0) -> tuple[Any, list[str]]:
    """Return the needed columns of a file as a ``pyarrow.Table``, and the names of all.

    Args:
        before: Rows in earlier files of the data set.
    """
    try:
        return _table(path, columns, budget, before)
    except DataError:
        raise
    except _damage() as error:
        raise DataError(f"{path}: not a readable parquet file ({type(error).__name__})") from None


def _table(path: Path, columns: Columns, budget: Budget, before: int) -> tuple[Any, list[str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with open_file(path) as file:
        summary = _read(path, read_summary, file)
        with pq.ParquetFile(path) as source:
            metadata, schema = source.metadata, source.schema_arrow
            if metadata.num_columns > limits.COLUMNS or before + metadata.num_rows > limits.SAMPLES:
                raise DataError(
                    f"{path}: announces {metadata.num_rows} rows of {metadata.num_columns} columns: at most "
                    f"{limits.SAMPLES} and {limits.COLUMNS} are read"
                )
            called = columns.called(schema.names)
            meant = pa.schema([f.with_name(n) for f, n in zip(schema, called, strict=True)], schema.metadata)
            chosen = choose(meant, columns, str(path)).names
            names = [own for own, name in zip(schema.names, called, strict=True) if name in chosen]
            size = _read(path, footprint, file, summary, names)
            batches = _batches(source, names, size, path, budget)
            kept = pa.schema([schema.field(name) for name in names], schema.metadata)
            table = pa.Table.from_batches(batches).replace_schema_metadata(schema.metadata) if batches else None
    table = kept.empty_table() if table is None else table
    if len(table) != metadata.num_rows:
        raise DataError(f"{path}: announces {metadata.num_rows} rows but holds {len(table)}")
    renamed = table.rename_columns(columns.called(table.column_names))
    return renamed.replace_schema_metadata(schema.metadata), called


def _read(path: Path, function: Callable[..., T], *arguments: Any) -> T:
    try:
        return function(*arguments)
    except ValueError as error:
        raise DataError(f"{path}: not a readable parquet file ({error})") from None


def _batches(source: Any, names: list[str], expected: Footprint, path: Path, budget: Budget) -> list[Any]:
    budget.take(expected.size, path)
    rows = max(1, min(_ROWS, _PORTION // max(1, expected.largest)))
    taken = expected.size
    batches, size = [], 0
    for batch in source.iter_batches(rows, columns=names, use_threads=False):
        size += batch.nbytes
        if size > taken:  # a value stored once is shared by many rows
            budget.take(size - taken, path)
            taken = size
        batches.append(batch)
    return batches
