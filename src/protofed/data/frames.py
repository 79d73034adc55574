"""A pandas frame as data: read as a table of its own types, with texts as in a CSV file.

It lies in a folder that only its user can read, from which other processes of a run read it as well, until this
process ends.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cache
from numbers import Real
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from protofed.data.options import Columns, DataOptions
from protofed.data.pool import Dataset, Listing, datasets
from protofed.data.tables import category
from protofed.data.tabular import as_texts, read_parquet
from protofed.errors import ConfigError, DataError
from protofed.options import Options, option
from protofed.storage.files import write_bytes

if TYPE_CHECKING:
    from pandas import DataFrame, Series

WHERE = "the data frame"  #: Name of a frame in messages


@dataclass(frozen=True)
class FrameOptions(Options):
    """Options of a data frame."""

    frame: str = option("", "SHA-256 of its content, as protofed.federation sets it")
    resize: int = option(0, "side in pixels: shorter side resized, centre crop (0 = as stored)", least=0)
    id_column: str = option("", "column with natural ids, for partition=natural")


def keep(frame: DataFrame) -> Path:
    """Keep a frame until this process ends, and return its file; equal frames have one.

    Raises:
        DataError: If it is not a data frame or has a column of an unsupported type.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(as_arrow(frame), sink)
    content = sink.getvalue().to_pybytes()
    path = Path(_keep_files().name, f"{hashlib.sha256(content).hexdigest()}.parquet")
    if not path.is_file():
        write_bytes(path, content)
    return path


@cache
def _keep_files() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="protofed-")  # removed with this process


def as_arrow(
    frame: DataFrame, where: str = WHERE, texts: Collection[str] = (), na_values: Collection[str] = ()
) -> Any:
    """Return the columns of a frame, without its index, as a ``pyarrow.Table``.

    Numbers, truth values, dates, lists and bytes keep their types; durations become days, and a categorical the
    names of its categories. Texts, also those among other values, are read as in a CSV file.

    Raises:
        DataError: Names the column, and the row from 0, of what cannot be read.
    """
    import pandas as pd
    import pyarrow as pa

    if not isinstance(frame, pd.DataFrame):
        raise DataError(f"{where}: expected a pandas data frame, not {type(frame).__name__}")
    if frame.columns.nlevels > 1:
        raise DataError(f"{where}: its columns have {frame.columns.nlevels} levels of names: give each one name")
    names = [str(name) for name in frame.columns]
    for name, number in Counter(names).items():
        if number > 1:
            raise DataError(f"{where}: {number} columns are called {name!r}: give each its own name")
    columns = [_column(frame.iloc[:, place], name, where) for place, name in enumerate(names)]
    return as_texts(pa.table(columns, names=names), texts, na_values)


def _column(values: Series[Any], name: str, where: str) -> Any:
    import pandas as pd
    import pyarrow as pa

    kind = values.dtype
    if isinstance(kind, pd.CategoricalDtype):
        known = [None, *map(category, kind.categories)]
        return pa.array([known[code + 1] for code in values.cat.codes], pa.string()).dictionary_encode()
    if isinstance(kind, pd.SparseDtype):
        values = values.sparse.to_dense()
    elif isinstance(kind, pd.PeriodDtype):
        values = values.dt.to_timestamp()
    elif kind.kind == "m":
        values = values.dt.total_seconds() / 86_400
    try:
        return pa.Table.from_pandas(values.to_frame(name), preserve_index=False).column(0)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        texts = [_text(value, f"{where}: column {name!r}, row {row}") for row, value in enumerate(values)]
        return pa.array(texts, pa.string())


def _text(value: Any, at: str) -> str | None:
    """Return one of several kinds of values as a CSV file would have it."""
    import pandas as pd

    if pd.api.types.is_scalar(value) and pd.isna(value):
        return None
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, (Real, Decimal)):
        return category(value)
    if isinstance(value, str):
        return value
    raise DataError(f"{at}: holds a {type(value).__name__} among other values: expected a number, a text or a date")


def open_frame(data: DataOptions, options: FrameOptions, seed: int) -> Listing:
    """Return a frame that this process, or one that began it, keeps."""
    if not re.fullmatch("[0-9a-f]{64}", options.frame):
        raise ConfigError("data.options.frame is not set: call protofed.federation with a data frame")
    places = [Path(folder, f"{options.frame}.parquet") for folder in (data.data_dir, _keep_files().name)]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise DataError(f"{WHERE} of this run is not here: call protofed.federation with the same frame first")
    columns = Columns.of(data, options.id_column, options.resize)
    try:
        return read_parquet([path], columns, WHERE, data.budget())
    except DataError as error:
        raise DataError(str(error).replace(str(path), WHERE)) from None


datasets.register("frame")(Dataset("a pandas frame, as protofed.federation keeps it", open_frame, FrameOptions))
