"""Data sets that Hugging Face's ``save_to_disk`` wrote, read from their Arrow files without ``datasets``."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protofed.data.arrow import from_arrow
from protofed.data.checks import open_file
from protofed.data.columns import Columns
from protofed.data.delimited import with_nothing
from protofed.data.folders import check_inside
from protofed.data.pool import Listing
from protofed.errors import DataError
from protofed.untrusted import limits
from protofed.untrusted.limits import Budget
from protofed.untrusted.reading import parse_json, read_text, reason

_STATE, _SPLITS = "state.json", "dataset_dict.json"


def is_saved(folder: Path) -> bool:
    """Return whether a folder is that of a saved data set, with or without splits."""
    return (folder / _STATE).exists() or (folder / _SPLITS).exists()


def read_saved(folder: Path, columns: Columns, budget: Budget) -> Listing:
    """Return all splits of a saved data set, in order, as one listing."""
    table = parse_saved(folder, columns, budget)
    return from_arrow(with_nothing(table, columns), columns, str(folder), budget)


def parse_saved(folder: Path, columns: Columns, budget: Budget) -> Any:
    """Return all columns of all splits of a saved data set as a ``pyarrow.Table``.

    Raises:
        DataError: If a file is missing, damaged or compressed, or the splits have different columns.
    """
    import pyarrow as pa

    tables: list[Any] = []
    files = _files(folder)
    for file in files:
        table = _table(file, budget)
        if tables and not table.schema.equals(tables[0].schema):
            raise DataError(f"{file}: its columns are not those of {files[0]}: keep splits of equal columns")
        tables.append(table)
        if sum(map(len, tables)) > limits.SAMPLES:
            raise DataError(f"{file}: more than {limits.SAMPLES} rows in all")
    table = pa.concat_tables(tables)
    renamed = table.rename_columns(columns.called(table.column_names))
    return renamed.replace_schema_metadata(table.schema.metadata)  # with the names of classes


def saved_schema(folder: Path) -> Any:
    """Return the ``pyarrow.Schema`` of a saved data set."""
    import pyarrow as pa

    path = _files(folder)[0]
    try:
        with open_file(path) as file:
            schema = pa.ipc.open_stream(file.read(limits.METADATA_BYTES)).schema
        _ = schema.names  # are decoded when they are asked for
        return schema
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"{path}: not a readable Arrow stream ({type(error).__name__})") from None


def _files(folder: Path) -> list[Path]:
    """Return the Arrow files of a saved data set, by its own list."""
    if (folder / _SPLITS).exists():
        named = _listed(folder / _SPLITS, "splits")
        return [file for name in named for file in _files(_inside(folder, name, folder / _SPLITS))]
    path = folder / _STATE
    entries = _listed(path, "_data_files")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
    return [_inside(folder, name, path) for name in names]


def _listed(path: Path, key: str) -> Sequence[Any]:
    check_inside(path, path.parent)
    try:
        content = parse_json(read_text(path, limits.JSON_BYTES))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not a readable JSON file: {reason(error)}") from None
    found = content.get(key) if isinstance(content, dict) else None
    if not isinstance(found, list) or not found:
        raise DataError(f"{path}: expected a list {key!r}, as save_to_disk writes it")
    if content.get("_indices_data_files"):
        raise DataError(f"{path}: rows in another order than their file's: save the data set with a newer version")
    return found


def _inside(folder: Path, name: Any, where: Path) -> Path:
    if not isinstance(name, str) or Path(name).name != name or not (folder / name).exists():
        raise DataError(f"{where}: names {str(name)[:80]!r}, which is not in its folder: copy the whole folder")
    check_inside(folder / name, folder)
    return folder / name


def _table(path: Path, budget: Budget) -> Any:
    import pyarrow as pa

    with open_file(path) as file:
        budget.take(2 * file.seek(0, 2), path)  # the file, and what is computed of it
        file.seek(0)
        content = pa.py_buffer(file.read())
    try:
        _check_plain(path, content)
        with pa.ipc.open_stream(content) as source:
            if len(source.schema.names) > limits.COLUMNS:  # which decodes them
                raise DataError(f"{path}: has more than {limits.COLUMNS} columns")
            batches = []
            for batch in source:
                batch.validate(full=True)
                batches.append(batch)
                if sum(map(len, batches)) > limits.SAMPLES:
                    raise DataError(f"{path}: announces more than {limits.SAMPLES} rows")
            table = pa.Table.from_batches(batches, source.schema)
    except (pa.ArrowException, OSError, ValueError, struct.error) as error:
        raise DataError(f"{path}: not a readable Arrow stream ({type(error).__name__})") from None
    for place, column in enumerate(table.columns):
        if isinstance(column.type, pa.BaseExtensionType):  # Hugging Face's Array2D
            plain = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
            table = table.set_column(place, table.column_names[place], plain)
    return table


def _check_plain(path: Path, content: Any) -> None:
    """Refuse compressed columns, whose size in memory a file may claim; ``save_to_disk`` writes none."""
    import pyarrow as pa

    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(content))
    while True:
        try:
            message = reader.read_next_message()  # a verified flatbuffer
        except StopIteration:
            return
        data = message.metadata.to_pybytes()
        header = _to(data, _field(data, _to(data, 0), 2))
        if message.type == "dictionary":
            header = _to(data, _field(data, header, 1))
        if message.type in ("dictionary", "record batch") and _field(data, header, 3):
            raise DataError(f"{path}: holds compressed columns: save the data set by save_to_disk")


def _to(data: bytes, place: int) -> int:
    """Return where the offset at a place of a flatbuffer leads."""
    offset: int = struct.unpack_from("<I", data, place)[0]
    return place + offset


def _field(data: bytes, table: int, number: int) -> int:
    """Return the place of a field of a flatbuffer's table; 0 if it has none."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    (size,) = struct.unpack_from("<H", data, vtable)
    (offset,) = struct.unpack_from("<H", data, vtable + 4 + 2 * number) if 4 + 2 * number < size else (0,)
    return table + offset if offset else 0
