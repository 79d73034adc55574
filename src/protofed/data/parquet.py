"""Conversion of parquet files to listings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from protofed.data import apart
from protofed.data.arrow import choose, from_arrow
from protofed.data.columns import Columns
from protofed.data.delimited import read_each, with_nothing
from protofed.data.pool import Listing
from protofed.errors import DataError
from protofed.untrusted.limits import Budget


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
