"""What a parquet file will take in memory, from the headers of its pages.

A file of a kilobyte may announce gigabytes, and its summary of itself need not agree with its pages. Pages are what
a reader unpacks one after the other, so their headers are looked at first: a few bytes each, in Thrift's compact
protocol.
"""

from __future__ import annotations

from typing import Any, BinaryIO, NamedTuple

from protofed import limits

_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3
_KIND, _UNPACKED, _PACKED = 1, 2, 3
_HEADER_OF = {_DATA: 5, _DATA_2: 8}
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 12}


class Footprint(NamedTuple):
    """The memory that columns take.

    Attributes:
        size: Bytes of all pages once unpacked, and of the numbers that they hold.
        largest: Bytes of the largest page with texts or bytes: no such value is larger.
    """

    size: int = 0
    largest: int = 0


def footprint(file: BinaryIO, metadata: Any, names: list[str]) -> Footprint:
    """Return what the columns ``names`` take in memory.

    Args:
        file: The parquet file.
        metadata: Its ``pyarrow.parquet.FileMetaData``.
        names: Columns of the top level.

    Raises:
        ValueError: If page headers are damaged, do not agree with the metadata, or are too many.
    """
    size = largest = pages = rows = 0
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        rows += group.num_rows
        for j in range(group.num_columns):
            column = group.column(j)
            if not any(f"{column.path_in_schema}.".startswith(f"{name}.") for name in names):
                continue
            unpacked = _pages(file, column)
            pages += len(unpacked)
            if pages > limits.PAGES:
                raise ValueError(f"more than {limits.PAGES} pages")
            size += sum(unpacked) + column.num_values * _WIDTHS.get(column.physical_type, 8)
            if column.physical_type not in _WIDTHS:
                largest = max(largest, *unpacked, 0)
    if rows != metadata.num_rows:
        raise ValueError(f"{metadata.num_rows} rows announced, {rows} in its parts")
    return Footprint(size, largest)


def _pages(file: BinaryIO, column: Any) -> list[int]:
    """Return the unpacked sizes of a column's pages."""
    at = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < at:
        at = column.dictionary_page_offset
    end, values, found = at + column.total_compressed_size, 0, []
    if at < 0 or column.num_values < 0 or column.total_compressed_size < 0:
        raise ValueError("impossible offsets")
    while values < column.num_values:
        if at >= end:
            raise ValueError("pages end early")
        file.seek(at)
        header = _struct(file)
        kind, unpacked, packed = (header.get(i, -1) for i in (_KIND, _UNPACKED, _PACKED))
        if not (isinstance(unpacked, int) and isinstance(packed, int) and unpacked >= 0 and packed >= 0):
            raise ValueError("damaged page header")
        if kind in _HEADER_OF:
            inner = header.get(_HEADER_OF[kind])
            count = inner.get(1) if isinstance(inner, dict) else None
            if not isinstance(count, int) or count < 0:
                raise ValueError("damaged page header")
            values += count
        found.append(unpacked)
        at = file.tell() + packed
        if len(found) > limits.PAGES:
            raise ValueError(f"more than {limits.PAGES} pages")
    if at > end or values != column.num_values:
        raise ValueError("pages hold more than announced")
    return found


def _struct(file: BinaryIO, depth: int = 0) -> dict[int, Any]:
    """Return a struct's fields by number: whole numbers and structs; what else there is, is passed over."""
    if depth > 8:
        raise ValueError("damaged page header")
    fields: dict[int, Any] = {}
    number = 0
    while (first := _byte(file)) & 15:
        number = number + (first >> 4) if first >> 4 else _zigzag(file)
        fields[number] = _value(file, first & 15, depth)
        if len(fields) > 64:
            raise ValueError("damaged page header")
    return fields


def _value(file: BinaryIO, kind: int, depth: int) -> Any:
    if kind in (4, 5, 6):
        return _zigzag(file)
    if kind == 12:
        return _struct(file, depth + 1)
    if kind in (1, 2):  # true, false
        return None
    sizes = {3: 1, 7: 8}  # byte, double
    length = sizes[kind] if kind in sizes else _varint(file) if kind == 8 else -1
    if not 0 <= length <= limits.METADATA_BYTES:  # lists and maps do not occur in page headers
        raise ValueError("damaged page header")
    file.seek(length, 1)
    return None


def _byte(file: BinaryIO) -> int:
    read = file.read(1)
    if not read:
        raise ValueError("damaged page header")
    return read[0]


def _varint(file: BinaryIO) -> int:
    value = 0
    for shift in range(0, 70, 7):
        byte = _byte(file)
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("damaged page header")


def _zigzag(file: BinaryIO) -> int:
    value = _varint(file)
    return (value >> 1) ^ -(value & 1)
