"""Reading of the typed columns of an Arrow table as raw values: numbers, and categories by their number."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofed.data.dates import convert_dates
from protofed.data.options import Columns
from protofed.data.tables import RawColumn, at_row, category, is_number
from protofed.errors import DataError
from protofed.untrusted import claims, limits
from protofed.untrusted.limits import Budget

Files = Sequence[tuple[str, int]]  #: Name and number of rows of each file that a table was read from

_FEW = 20  #: Different values that are a few: no more categories than a person would read through
_LEAST = 10  #: Values below which nothing is taken for an identifier
_REPEATS = 10  #: Expected repetitions; the probability of none is then below e^-10
_THING = "(case|participant|patient|person|proband|record|row|sample|specimen|subject)"
_COUNTED = rf"({_THING}|account|admission|chart|donor|encounter|insurance|phone|visit)"
_NAMED = re.compile(
    rf"(.* )?(guid|id|identifier|ids|mrn|pid|ssn|uid|uuid)( .*)?|{_THING}|idx|nr|number|\w+(nr|nummer)"
    rf"|(.* )?{_COUNTED} ?(id|idx|index|key|nbr|no|nr|num|number)"
)
"""Names of identifiers, as words in lower case."""


def read_columns(
    table: Any, names: Sequence[str], asked: Columns, files: Files, budget: Budget
) -> tuple[Tensor, tuple[RawColumn, ...]]:
    """Return the columns of a table as raw values.

    Args:
        names: Those to read. One of free text becomes as many columns as its vectors have numbers.

    Returns:
        ``(n, C)`` float64 with NaN where values are missing, and the columns.

    Raises:
        DataError: Names the file, the column and the row of an unsuitable value.
    """
    where = files[0][0]
    width = len(names) + (asked.form.width - 1) * len(asked.text)
    if width > limits.COLUMNS:
        raise DataError(f"{where}: has more than {limits.COLUMNS} columns with those of texts (data.text)")
    budget.take(16 * len(table) * width, where)
    raw = np.empty((len(table), width))
    columns: list[RawColumn] = []
    given = {name: _strings(table[name], name, files) for name in asked.dates}
    dates = convert_dates(given, asked.dates, partial(locate, files), asked.month_first)
    for name in names:
        try:
            claims.class_name(name)
        except ValueError as error:
            raise DataError(f"{where}: a column cannot be used ({error}): rename it, or set data.drop") from None
        if name in asked.text:
            texts = _strings(table[name], name, files)
            numbers = asked.form.read(texts, partial(locate, files, name), empty=asked.missing)
            raw[:, len(columns) : len(columns) + numbers.shape[1]] = numbers
            columns += asked.form.columns(name)
            continue
        if name in dates:
            values, column = dates[name], RawColumn(name)
        else:
            renamed, keep = asked.categories.get(name), name in asked.described
            values, column = _read(table[name], name, renamed, keep, files)
        raw[:, len(columns)] = values
        columns.append(column)
        absent = np.flatnonzero(np.isnan(values))
        if len(absent) and not asked.missing and column.kind != "identifier":
            raise DataError(
                f"{locate(files, name, absent[0])} has no value: fill it in, or set data.missing=mean or indicator"
            )
    return torch.from_numpy(raw), tuple(columns)


def _strings(column: Any, name: str, files: Files) -> list[Any]:
    found = []
    for row, value in enumerate(column):
        try:
            given = value.as_py()
        except UnicodeDecodeError:
            raise DataError(f"{locate(files, name, row)} is not text in UTF-8") from None
        found.append(given.strip() if isinstance(given, str) else given)
    return found


def locate(files: Files, name: str, row: int) -> str:
    """Return the place of a value for messages, given the row from 0 of all files together."""
    number = 0
    while row >= files[number][1]:
        row -= files[number][1]
        number += 1
    return at_row(files[number][0], name, row)


def _read(
    column: Any, name: str, renamed: Mapping[str, str] | None, keep: bool, files: Files
) -> tuple[np.ndarray, RawColumn]:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pa.types.is_null(kind):
        return np.full(len(column), np.nan), RawColumn(name, "unknown")
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not text:
        values = _numbers(column, name, files)  # refuses other types
        if renamed is None:
            identifier = not keep and identifies(name, values[~np.isnan(values)])
            return values, RawColumn(name, "identifier" if identifier else "number")
    return _categories(column, name, renamed, keep, files)


def identifies(name: str, values: np.ndarray) -> bool:
    """Return whether values identify samples rather than describe them; there are no missing ones.

    Whole numbers and texts of a name such as ``patient_id`` do if more than a few of them, or more than half,
    differ. Other texts do if both hold. Other whole numbers do if they do not repeat although chance would repeat
    them: of n values in a range of R, n (n - 1) / 2R pairs or more are expected to be equal, whatever their
    distribution.
    """
    n, text = len(values), values.dtype.kind == "U"
    if n < _LEAST or (not text and (values % 1).any()):
        return False
    distinct = len(np.unique(values))
    words = re.findall(r"[^\W\d_]+", re.sub(r"(?<=[^\W\dA-Z_])(?=[A-Z])", " ", name))
    if _NAMED.fullmatch(" ".join(words).casefold()):
        return distinct > min(_FEW, n / 2)
    if text or distinct <= n / 2:
        return text and distinct > max(_FEW, n / 2)
    repeats = n * (n - 1) / 2 / float(values.max() - values.min() + 1)
    return bool(repeats >= _REPEATS and n - distinct <= repeats / (2 * _REPEATS))


def _numbers(column: Any, name: str, files: Files) -> np.ndarray:
    import pyarrow as pa

    kind = column.type
    known = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
    if not any(is_known(kind) for is_known in known):
        raise DataError(
            f"{files[0][0]}: column {name!r} ({str(kind)[:80]}) holds neither numbers nor text: leave it out by "
            f"data.drop={name}"
        )
    parts = [chunk.to_numpy(zero_copy_only=False) for chunk in column.chunks]
    values = np.concatenate(parts).astype(np.float64) if parts else np.zeros(0)
    bad = np.flatnonzero(np.abs(values) > limits.LARGEST)
    if len(bad):
        raise DataError(f"{locate(files, name, bad[0])} is {values[bad[0]]:g}: expected at most {limits.LARGEST:g}")
    return values


def _categories(
    column: Any, name: str, renamed: Mapping[str, str] | None, keep: bool, files: Files
) -> tuple[np.ndarray, RawColumn]:
    encoded = column.combine_chunks().dictionary_encode()
    # Different values may have one name, such as 1 and 1.0, or texts that differ in outer spaces.
    named = [category(value) if value == value else "" for value in encoded.dictionary.to_pylist()]
    named = [(renamed or {}).get(text, text) for text in named]
    indices = encoded.indices.to_numpy(zero_copy_only=False)
    absent = np.isnan(indices.astype(np.float64))
    indices = np.where(absent, 0, indices).astype(np.int64)
    absent |= np.array([not text for text in named] or [True])[indices]
    if renamed is None:
        _check_no_numbers(named, indices, absent, name, files)
    order = tuple(sorted({text for text in named if text}))
    if not order:
        return np.full(len(column), np.nan), RawColumn(name, "unknown")
    # Texts of four words on average are hardly names.
    free = f" (for free text, set data.text={name})" if sum(n.count(" ") for n in order) >= 3 * len(order) else ""
    if renamed is None and not keep and identifies(name, np.array(named)[indices[~absent]]):
        if free:
            raise DataError(
                f"{files[0][0]}: column {name!r}: its texts hardly repeat: leave it out by data.drop={name}{free}"
            )
        return np.zeros(len(column)), RawColumn(name, "identifier")
    if len(order) > limits.CATEGORIES:
        raise DataError(
            f"{files[0][0]}: column {name!r} has {len(order)} different texts, more than {limits.CATEGORIES}: "
            f"leave it out by data.drop={name}{free}"
        )
    for value in order:
        try:
            claims.class_name(value)
        except ValueError as error:
            row = int(np.flatnonzero(np.array(named)[indices] == value)[0])
            raise DataError(f"{locate(files, name, row)}: not a category ({error}){free}") from None
    code = {value: float(number) for number, value in enumerate(order)}
    codes = np.array([code.get(value, np.nan) for value in named])
    return np.where(absent, np.nan, codes[indices]), RawColumn(name, "category", order)


def _check_no_numbers(
    named: Sequence[str], indices: np.ndarray, absent: np.ndarray, name: str, files: Files
) -> None:
    """Reject text in mostly numeric columns."""
    numeric = np.array([is_number(text) for text in named] or [False])[indices] & ~absent
    odd = ~numeric & ~absent
    if odd.any() and numeric.sum() > odd.sum():
        row = int(np.flatnonzero(odd)[0])
        raise DataError(
            f"{locate(files, name, row)}: text {named[indices[row]][:40]!r} in a column of numbers: correct it, or "
            f"declare categories by data.categories.{name}=[]"
        )
