"""An arrow table to a listing: which columns hold the images, the labels and the natural ids."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofed.data.checks import as_labels
from protofed.data.images import decode
from protofed.data.pool import Listing
from protofed.errors import DataError, unknown_name

LABEL_NAMES = ("label", "labels", "y", "target", "class")


@dataclass(frozen=True)
class Columns:
    """Which columns to read and how; ``""`` and 0 mean "find out".

    Attributes:
        image: Column with encoded images or with features.
        label: Column with labels.
        id: Column with natural ids; none if empty.
        channels: 1 or 3 to force grey or RGB.
        resize: Side in pixels that images are resized to, 0 for as stored.
    """

    image: str = ""
    label: str = ""
    id: str = ""
    channels: int = 0
    resize: int = 0


def from_arrow(table: Any, columns: Columns, where: str) -> Listing:
    """Return a ``pyarrow.Table`` as a listing; class names come from its Hugging Face metadata, if any.

    Images are encoded bytes, as a binary column or as the hub's ``struct<bytes, path>``. Without such a
    column the features are one list column or all numeric columns.

    Raises:
        DataError: For columns that cannot be told, missing values, or labels that are no labels.
    """
    hub = _hub_features(table)
    label = _label_column(table, columns, hub, where)
    if columns.id:
        _has(table, columns.id, "id", where)
    names = hub.get(label, {}).get("names")
    labels = as_labels(_values(table[label], where, label), where)
    ids = _values(table[columns.id], where, columns.id) if columns.id else None
    rest = [c for c in table.column_names if c not in (label, columns.id)]
    image = columns.image or _image_column(table, rest, where)
    if image:
        _has(table, image, "image", where)
    if image and _is_encoded(table.schema.field(image).type):
        read = _EncodedImages(table[image], columns, f"{where}: row ")
        return Listing(labels, read, where, tuple(names) if names else None, ids)
    x = _numeric(table, [image] if image else rest, where)
    if columns.resize:
        raise DataError(f"{where}: data.options.resize applies to images, and this table has none")
    return Listing(labels, lambda rows: x[rows], where, tuple(names) if names else None, ids)


class _EncodedImages:
    """Rows of an arrow column of encoded images; rows are looked up chunk by chunk, without a copy."""

    def __init__(self, column: Any, columns: Columns, prefix: str) -> None:
        import pyarrow as pa

        chunks = [c.field("bytes") if pa.types.is_struct(c.type) else c for c in column.chunks]
        self._chunks = chunks
        self._ends = list(accumulate(len(c) for c in chunks))
        self._columns = columns
        self._prefix = prefix

    def __call__(self, rows: Tensor) -> Tensor:
        return decode(self._bytes, rows, self._name, self._columns.channels, self._columns.resize)

    def _name(self, row: int) -> str:
        return f"{self._prefix}{row}"

    def _bytes(self, row: int) -> Any:
        number = bisect_right(self._ends, row)
        chunk = self._chunks[number]
        buffer = chunk[row - self._ends[number] + len(chunk)].as_buffer()
        if buffer is None:
            raise DataError(f"{self._name(row)}: no image bytes (paths to image files are not followed)")
        return buffer


def _hub_features(table: Any) -> dict[str, Any]:
    metadata = (table.schema.metadata or {}).get(b"huggingface")
    try:
        found = json.loads(metadata)["info"]["features"] if metadata else {}
    except (ValueError, KeyError, TypeError):
        return {}
    return {name: f for name, f in found.items() if isinstance(f, dict)}


def _label_column(table: Any, columns: Columns, hub: dict[str, Any], where: str) -> str:
    if columns.label:
        _has(table, columns.label, "label", where)
        return columns.label
    marked = [c for c, f in hub.items() if f.get("_type") == "ClassLabel" and c in table.column_names]
    named = [c for c in LABEL_NAMES if c in table.column_names]
    for candidates in (marked, named):
        if len(candidates) == 1:
            return candidates[0]
    raise DataError(f"{where}: cannot tell the label column among {_list(table)}: set data.label_column")


def _image_column(table: Any, rest: list[str], where: str) -> str:
    """Return the only column of encoded images, else the only list column, else ``""``."""
    import pyarrow as pa

    types = {c: table.schema.field(c).type for c in rest}
    encoded = [c for c in rest if _is_encoded(types[c])]
    lists = [c for c in rest if pa.types.is_list(types[c]) or pa.types.is_fixed_size_list(types[c])]
    for candidates in (encoded, lists):
        if len(candidates) > 1:
            raise DataError(f"{where}: several columns could be the image, {candidates}: set data.image_column")
        if candidates:
            return candidates[0]
    return ""


def _is_encoded(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return any(kind.field(i).name == "bytes" for i in range(kind.num_fields))
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _numeric(table: Any, names: list[str], where: str) -> Tensor:
    """Return the columns side by side as float32 ``(n, F)``, or one list column as ``(n, *shape)``."""
    parts = []
    for name in names:
        try:
            part = np.array(table[name].to_pylist(), dtype=np.float32)
        except (ValueError, TypeError):
            raise DataError(
                f"{where}: column {name!r} ({table.schema.field(name).type}) is neither images nor equally "
                "many numbers per row: drop it or set data.image_column"
            ) from None
        parts.append(part if part.ndim > 1 else part[:, None])
    if not parts:
        raise DataError(f"{where}: no column besides the label")
    return torch.from_numpy(parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1))


def _values(column: Any, where: str, name: str) -> np.ndarray:
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise DataError(f"{where}: column {name!r} has no value in row {row}")
    values: np.ndarray = column.to_numpy()
    return values


def _has(table: Any, name: str, role: str, where: str) -> None:
    if name not in table.column_names:
        raise DataError(f"{where}: {unknown_name(f'{role} column', name, table.column_names)}")


def _list(table: Any) -> str:
    return ", ".join(table.column_names) or "none"
