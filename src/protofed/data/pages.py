"""Memory footprint of a parquet file, computed from its page headers.

A file of a kilobyte may expand to gigabytes, and its metadata need not agree with its pages. pyarrow 26 cannot
limit that: it allocates what the header of each page says, which it does not show, and asking it for the columns
of some damaged metadata (``RowGroupMetaData.column``) aborts the process. The metadata and the page headers, a few
bytes each, are therefore parsed here before pyarrow decompresses anything.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

from protofed.data.compact import Struct, read_struct
from protofed.untrusted import limits

_DATA, _DATA_2 = 0, 3
_WIDTHS = {0: 1, 1: 4, 2: 8, 3: 12, 4: 4, 5: 8}
"""Physical type → bytes per value: BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE."""


class Footprint(NamedTuple):
    """The memory that columns take.

    Attributes:
        size: Of all decompressed pages and of the values decoded from them.
        largest: Of the largest decompressed page of strings or binary values, a bound on any such value.
    """

    size: int = 0
    largest: int = 0


class ColumnChunk(NamedTuple):
    """The location of one column of one row group.

    Attributes:
        path: From the top level down.
        kind: Physical type.
        values: According to the metadata.
        begin: Offset of the first page.
        length: Bytes of all its stored pages.
    """

    path: list[str]
    kind: int
    values: int
    begin: int
    length: int


def read_summary(file: BinaryIO) -> Struct:
    """Return the metadata at the end of a parquet file; ValueError if damaged or too long."""
    length = file.seek(0, io.SEEK_END)
    if length < 12:
        raise ValueError("too short")
    file.seek(-8, io.SEEK_END)
    (size,) = struct.unpack("<I", file.read(4))
    if size > min(limits.METADATA_BYTES, length - 8):
        raise ValueError("the metadata is too long")
    file.seek(-8 - size, io.SEEK_END)
    return read_struct(io.BytesIO(file.read(size)))


def footprint(file: BinaryIO, summary: Struct, names: list[str]) -> Footprint:
    """Return the memory footprint of some columns.

    Raises:
        ValueError: If page headers are damaged, disagree with the metadata, or are too many.
    """
    size = largest = pages = 0
    for column in _columns(summary):
        if column.path[0] not in names:
            continue
        unpacked = _pages(file, column)
        pages += len(unpacked)
        if pages > limits.PAGES:
            raise ValueError(f"more than {limits.PAGES} pages")
        size += sum(unpacked) + column.values * _WIDTHS.get(column.kind, 8)
        if column.kind not in _WIDTHS:
            largest = max(largest, *unpacked, 0)
    return Footprint(size, largest)


def _columns(summary: Struct) -> Iterator[ColumnChunk]:
    rows = 0
    for group in _of(summary, 4, list):
        rows += _of(group, 3, int)
        for chunk in _of(group, 1, list):
            if chunk.get(1):
                raise ValueError("columns are stored in other files")
            column = _of(chunk, 3, dict)
            begin, dictionary = _of(column, 9, int), column.get(11)
            if isinstance(dictionary, int) and 0 < dictionary < begin:
                begin = dictionary
            numbers = _of(column, 1, int), _of(column, 5, int), begin, _of(column, 7, int)
            if min(numbers) < 0:
                raise ValueError("invalid numbers")
            path = [part.decode() for part in _of(column, 3, list)]
            if not path:
                raise ValueError("a column without a name")
            yield ColumnChunk(path, *numbers)
    if rows != _of(summary, 3, int):
        raise ValueError(f"{summary[3]} rows announced, but {rows} in its row groups")


def _pages(file: BinaryIO, column: ColumnChunk) -> list[int]:
    """Return the decompressed sizes of a column's pages."""
    at, end, values = column.begin, column.begin + column.length, 0
    sizes: list[int] = []
    while values < column.values:
        if at >= end:
            raise ValueError("pages end early")
        file.seek(at)
        header = read_struct(file)
        kind, unpacked, packed = (_of(header, i, int) for i in (1, 2, 3))
        if unpacked < 0 or packed < 0:
            raise ValueError("invalid numbers")
        if kind in (_DATA, _DATA_2):
            values += _count(_of(header, 5 if kind == _DATA else 8, dict))
        sizes.append(unpacked)
        at = file.tell() + packed
        if len(sizes) > limits.PAGES:
            raise ValueError(f"more than {limits.PAGES} pages")
    if at > end or values != column.values:
        raise ValueError("pages hold more than announced")
    return sizes


def _count(header: Struct) -> int:
    count: int = _of(header, 1, int)
    if count < 0:
        raise ValueError("invalid numbers")
    return count


def _of(values: Any, number: int, kind: type) -> Any:
    value = values.get(number) if isinstance(values, dict) else None
    if not isinstance(value, kind):
        raise ValueError("damaged metadata")
    return value
