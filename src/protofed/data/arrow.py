"""Conversion of an Arrow table to a listing: detection of the image, label, natural-id and feature columns."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofed.data.checks import as_labels, check_columns, check_names, check_sample
from protofed.data.images import decode
from protofed.data.options import Columns
from protofed.data.pool import Listing
from protofed.data.typed import locate, read_columns
from protofed.errors import DataError, unknown_name
from protofed.text import few
from protofed.untrusted import limits
from protofed.untrusted.limits import Budget
from protofed.untrusted.reading import parse_json

LABEL_NAMES = ("label", "labels", "y", "target", "class")
INDEX = re.compile(r"|Unnamed: 0|__index_level_\d+__")
"""Names that pandas gives to a data frame's index in parquet and CSV files."""


@dataclass(frozen=True)
class ChosenColumns:
    """The columns of one table that are read."""

    label: str
    id: str
    features: tuple[str, ...]  #: One column of encoded images or lists, or all columns of a table
    encoded: bool  #: ``features`` is one column of encoded images
    listed: bool  #: ``features`` is one column of lists
    classes: tuple[str, ...] | None

    @property
    def names(self) -> list[str]:
        """The names of all these columns."""
        return [name for name in dict.fromkeys([self.label, self.id, *self.features]) if name]


def choose(schema: Any, columns: Columns, where: str) -> ChosenColumns:
    """Choose the columns to read."""
    check_columns(schema.names, where)
    hub = _hub_features(schema, where)
    label = _label_column(schema.names, columns, hub, where) if columns.labelled else ""
    dropped = () if columns.anywhere else columns.drop
    named = {"id": [columns.id] if columns.id else [], "dropped": dropped, "kept": columns.keep}
    for role, names in named.items() if columns.labelled else ():
        for name in names:
            _has(schema.names, name, role, where)
    left_out = {label or columns.label, columns.id, *columns.drop, *_index(schema)}
    rest = [c for c in schema.names if c not in left_out]
    image = columns.image or _image_column(schema, rest, where)
    if image:
        _has(schema.names, image, "image", where)
    encoded = bool(image) and _is_encoded(schema.field(image).type)
    if columns.resize and not encoded:
        raise DataError(f"{where}: data.options.resize applies to images, and this table has none")
    features = (image,) if image else tuple(rest)
    if not features:
        raise DataError(f"{where}: no column other than the label")
    for role, names in ("text", columns.text), ("date", tuple(columns.dates)):
        for name in names:
            _has(list(features), name, role, where)
    listed = bool(image) and _is_list(schema.field(image).type)
    if listed:
        inner = schema.field(image).type
        for _ in range(limits.DIMENSIONS):
            inner = inner.value_type if _is_list(inner) else inner
        if not _is_number(inner):
            raise _no_numbers(image, schema.field(image).type, where)
    classes = hub.get(label, {}).get("names")
    if classes and not (isinstance(classes, list) and all(isinstance(name, str) for name in classes)):
        raise DataError(f"{where}: class names in the metadata of {label!r} are not a list of names")
    identifier = columns.id if columns.labelled else ""
    return ChosenColumns(
        label, identifier, features, encoded, listed, check_names(classes, where) if classes else None
    )


def from_arrow(
    table: Any, columns: Columns, where: str, budget: Budget, files: Sequence[tuple[str, int]] = ()
) -> Listing:
    """Return a table as a listing; class names come from its Hugging Face metadata, if any.

    Images are encoded bytes, either in a binary column or as the hub's ``struct<bytes, path>``; paths are not
    followed. Without such a column, the features are one list column, or all other columns form a table.

    Args:
        files: Name and rows of each file, for messages; by default one, ``where``.
    """
    import pyarrow as pa

    chosen, files = choose(table.schema, columns, where), files or [(where, len(table))]
    labels, ids = np.zeros(len(table), np.int64), None
    rows = torch.arange(len(table))  # that are used

    def at(name: str) -> Callable[[int], str]:
        return lambda place: locate(files, name, int(rows[place]))

    if chosen.label:
        found = _read_labels(table[chosen.label])
        if columns.unlabelled and found.null_count:
            rows = torch.from_numpy(np.flatnonzero(found.is_valid().to_numpy()))
            found = found.drop_null()
        labels = as_labels(_values(found, chosen.label, at, where, budget), where, budget, at(chosen.label))
    if chosen.id:
        ids = _values(table[chosen.id].take(pa.array(rows.numpy())), chosen.id, at, where, budget)
    shared = Listing(labels, lambda wanted: wanted, where, chosen.classes, ids, names=tuple(table.column_names))
    shared = replace(shared, at=at(chosen.label)) if chosen.label else shared
    if chosen.encoded:
        read = _EncodedImages(table[chosen.features[0]], columns, f"{where}: row ", budget)
        return replace(shared, read=lambda wanted: read(rows[wanted]), converted=read.converted)
    if chosen.listed:
        x = _numeric(table, chosen.features[0], where, budget)
        return replace(shared, read=lambda wanted: x[rows[wanted]])
    raw, kinds = read_columns(table, chosen.features, columns, files, budget)
    return replace(shared, read=lambda wanted: raw[rows[wanted]], columns=kinds)


def _read_labels(labels: Any) -> Any:
    """Return a column of labels in which blank texts are missing, as they are in a CSV file."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not (pa.types.is_string(labels.type) or pa.types.is_large_string(labels.type)):
        return labels
    blank = pc.equal(pc.utf8_trim_whitespace(labels), "")
    return pc.if_else(blank, pa.scalar(None, labels.type), labels)


class _EncodedImages:
    """Reader of an Arrow column of encoded images; rows are looked up in its chunks without copying them."""

    def __init__(self, column: Any, columns: Columns, prefix: str, budget: Budget) -> None:
        import pyarrow as pa

        chunks = [c.field("bytes") if pa.types.is_struct(c.type) else c for c in column.chunks]
        self._chunks = chunks
        self._ends = list(accumulate(len(c) for c in chunks))
        self._columns = columns
        self._prefix = prefix
        self._budget = budget
        self.converted: list[str] = []

    def __call__(self, rows: Tensor) -> Tensor:
        channels, resize = self._columns.channels, self._columns.resize
        return decode(self._bytes, rows, self._name, self._budget, channels, resize, self.converted)

    def _name(self, row: int) -> str:
        return f"{self._prefix}{row}"

    def _bytes(self, row: int) -> Any:
        number = bisect_right(self._ends, row)
        chunk = self._chunks[number]
        buffer = chunk[row - self._ends[number] + len(chunk)].as_buffer()
        if buffer is None:
            raise DataError(f"{self._name(row)}: no image bytes (paths to image files are not followed)")
        if buffer.size > limits.IMAGE_BYTES:
            raise DataError(f"{self._name(row)}: image of {buffer.size} bytes, more than {limits.IMAGE_BYTES}")
        return buffer


def _hub_features(schema: Any, where: str) -> dict[str, Any]:
    metadata = (schema.metadata or {}).get(b"huggingface", b"")
    if len(metadata) > limits.METADATA_BYTES:
        raise DataError(f"{where}: has {len(metadata)} bytes of metadata, more than {limits.METADATA_BYTES}")
    try:
        found = parse_json(metadata)["info"]["features"] if metadata else {}
    except (ValueError, KeyError, TypeError):
        return {}
    return {name: f for name, f in found.items() if isinstance(f, dict)} if isinstance(found, dict) else {}


def _index(schema: Any) -> set[str]:
    """Return the columns that hold the index of a data frame, by pandas' metadata or by their names."""
    names = {name for name in schema.names if INDEX.fullmatch(name)}
    metadata = (schema.metadata or {}).get(b"pandas", b"")
    try:
        found = parse_json(metadata)["index_columns"] if 0 < len(metadata) <= limits.METADATA_BYTES else []
    except (ValueError, KeyError, TypeError):
        found = []
    return names | {name for name in (found if isinstance(found, list) else []) if isinstance(name, str)}


def _label_column(names: list[str], columns: Columns, hub: dict[str, Any], where: str) -> str:
    if columns.label:
        _has(names, columns.label, "label", where)
        return columns.label
    marked = [c for c, f in hub.items() if f.get("_type") == "ClassLabel" and c in names]
    named = [c for c in LABEL_NAMES if c in names]
    for candidates in (marked, named):
        if len(candidates) == 1:
            return candidates[0]
    shown = few([name[: limits.CLASS_NAME] for name in names], _SHOWN) or "none"
    raise DataError(f"{where}: cannot identify the label column among {shown}: set data.label_column")


def _image_column(schema: Any, rest: list[str], where: str) -> str:
    """Return the only column of encoded images, else the only list column, else ``""``."""
    types = {c: schema.field(c).type for c in rest}
    encoded = [c for c in rest if _is_encoded(types[c])]
    lists = [c for c in rest if _is_list(types[c])]
    for candidates in (encoded, lists):
        if len(candidates) > 1:
            raise DataError(f"{where}: several columns could be the image, {candidates}: set data.image_column")
        if candidates:
            return candidates[0]
    return ""


def _is_encoded(kind: Any) -> bool:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return any(
            kind.field(i).name == "bytes" and _is_encoded(kind.field(i).type) for i in range(kind.num_fields)
        )
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _no_numbers(name: str, kind: Any, where: str) -> DataError:
    return DataError(
        f"{where}: column {name!r} ({str(kind)[:80]}) holds neither images nor equally many numbers in each row: "
        "leave it out by data.drop, or set data.image_column"
    )


def _numeric(table: Any, name: str, where: str, budget: Budget) -> Tensor:
    """Return a list column as float32 ``(n, *shape)``."""
    try:
        x = np.concatenate(list(_portions(table[name], where, budget)))
    except _LengthError as error:
        raise DataError(f"{where}: column {name!r}: {error}: all samples must share one shape") from None
    except ValueError:
        raise _no_numbers(name, table.schema.field(name).type, where) from None
    if len(x):
        check_sample(x[0].size, where)
    return torch.from_numpy(x)


class _LengthError(ValueError):
    """Raised for lists of different lengths."""


def _portions(column: Any, where: str, budget: Budget) -> Iterator[np.ndarray]:
    for chunk in column.chunks:
        budget.take(2 * chunk.nbytes + 4 * len(chunk), where)
        yield _numbers(chunk)
    if not column.num_chunks:
        yield np.zeros(0, np.float32)


def _numbers(array: Any) -> np.ndarray:
    """Return an Arrow array of numbers or of equally long lists as float32 ``(n, *shape)``."""
    import pyarrow as pa

    if array.null_count:
        raise ValueError
    if not _is_list(array.type):
        with np.errstate(over="ignore"):
            numbers: np.ndarray = array.to_numpy(zero_copy_only=False).astype(np.float32)
        return numbers
    if not pa.types.is_fixed_size_list(array.type) and len(array):
        lengths = array.value_lengths().to_numpy(zero_copy_only=False)
        if len(other := np.flatnonzero(lengths != lengths[0])):
            raise _LengthError(f"the list of row {other[0]} has {lengths[other[0]]} entries, others {lengths[0]}")
    inner = _numbers(array.flatten())
    if not len(array) or len(inner) % len(array):
        raise ValueError
    length = len(inner) // len(array)
    return inner.reshape(len(array), length, *inner.shape[1:])


_At = Callable[[str], Callable[[int], str]]
"""Names the place of a value, given its column and its number among those read."""


def _values(column: Any, name: str, at: _At, where: str, budget: Budget) -> np.ndarray:
    import pyarrow as pa

    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy())[0])
        raise DataError(f"{at(name)(row)} has no value")
    if pa.types.is_null(column.type):  # a CSV file without rows
        return np.zeros(0, np.int64)
    if pa.types.is_dictionary(column.type) and len(column):
        column = column.unify_dictionaries()
        known = _values(pa.chunked_array([column.chunk(0).dictionary]), name, at, where, budget)
        budget.take(16 * len(column), where)
        result: np.ndarray = known[np.concatenate([chunk.indices.to_numpy() for chunk in column.chunks])]
        return result
    text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if not (text or _is_number(column.type) or pa.types.is_dictionary(column.type)):
        kind = str(column.type)[:80]
        raise DataError(f"{where}: column {name!r} is {kind}: expected whole numbers or names, one per sample")
    budget.take(column.nbytes + 64 * len(column) * text, where)
    values: np.ndarray = column.to_numpy()
    return values


def _has(names: list[str], name: str, role: str, where: str) -> None:
    if name not in names:
        raise DataError(f"{where}: {unknown_name(f'{role} column', name, names[:_SHOWN])}")


_SHOWN = 40  #: Maximum number of names listed in an error message
