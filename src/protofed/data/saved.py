"""Data sets that Hugging Face's ``save_to_disk`` wrote, read from their Arrow files without ``datasets``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protofed.data import apart
from protofed.data.arrow import from_arrow
from protofed.data.checks import readable
from protofed.data.columns import Columns
from protofed.data.delimited import with_nothing
from protofed.data.folders import check_inside
from protofed.data.pool import Listing
from protofed.errors import DataError
from protofed.untrusted import limits
from protofed.untrusted.limits import Budget
from protofed.untrusted.reading import parse_json, read_text

_STATE, _SPLITS = "state.json", "dataset_dict.json"


def is_saved(folder: Path) -> bool:
    """Return whether a folder is that of a saved data set, with or without splits."""
    return (folder / _STATE).exists() or (folder / _SPLITS).exists()


def read_saved(folder: Path, columns: Columns, budget: Budget) -> Listing:
    """Return all splits of a saved data set, in order, as one listing."""
    table = parse_saved(folder, columns, budget)
    return from_arrow(with_nothing(table, columns), columns, str(folder), budget)


def parse_saved(folder: Path, columns: Columns, budget: Budget) -> Any:
    """Return all columns of all splits of a saved data set as a ``pyarrow.Table``."""
    import pyarrow as pa

    tables: list[Any] = []
    files = _files(folder)
    for file in files:
        table = apart.read_table("Arrow", file, budget)
        if tables and not table.schema.equals(tables[0].schema):
            raise DataError(f"{file}: its columns are not those of {files[0]}: keep splits of equal columns")
        tables.append(table)
        if sum(map(len, tables)) > limits.SAMPLES:
            raise DataError(f"{file}: more than {limits.SAMPLES} rows in all")
    table = pa.concat_tables(tables)
    renamed = table.rename_columns(columns.called(table.column_names))
    return renamed.replace_schema_metadata(table.schema.metadata)  # with the names of classes


def read_schema(folder: Path) -> Any:
    """Return the ``pyarrow.Schema`` of a saved data set."""
    return apart.read_schema("Arrow", _files(folder)[0])


def _files(folder: Path) -> list[Path]:
    """Return the Arrow files of a saved data set, by its own list."""
    if not (folder / _SPLITS).exists():
        return _shards(folder)
    places = [_inside(folder, name, folder / _SPLITS) for name in _list_values(folder / _SPLITS, "splits")]
    return [file for place in places for file in _shards(place)]


def _shards(folder: Path) -> list[Path]:
    path = folder / _STATE
    entries = _list_values(path, "_data_files")
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
    return [_inside(folder, name, path) for name in names]


def _list_values(path: Path, key: str) -> Sequence[Any]:
    check_inside(path, path.parent)
    with readable(path, "not a readable JSON file"):
        content = parse_json(read_text(path, limits.JSON_BYTES))
    found = content.get(key) if isinstance(content, dict) else None
    if not isinstance(found, list) or not found:
        raise DataError(f"{path}: expected a list {key!r}, as save_to_disk writes it")
    if len({str(entry) for entry in found}) < len(found):
        raise DataError(f"{path}: names one of its {key!r} twice: save the data set again by save_to_disk")
    if content.get("_indices_data_files"):
        raise DataError(f"{path}: rows in another order than their file's: save the data set with a newer version")
    return found


def _inside(folder: Path, name: Any, where: Path) -> Path:
    if not isinstance(name, str) or Path(name).name != name or not (folder / name).exists():
        raise DataError(f"{where}: names {str(name)[:80]!r}, which is not in its folder: copy the whole folder")
    check_inside(folder / name, folder)
    return folder / name
