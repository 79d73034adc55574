"""Dates as numbers: days since 2000, or days before another date of the sample, such as an age at admission."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protofed.errors import DataError

DAY = "day"  #: Value of ``data.dates`` for the days since START; any other names a column of dates
START = date(2000, 1, 1).toordinal()
_TIME = r"(?:[ T]+(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,]\d+)?)?(?:Z| ?[+-]\d{2}:?\d{2})?)?"
_YEAR_FIRST = re.compile(r"(\d{4})([-/.]?)(\d{1,2})\2(\d{1,2})" + _TIME, re.ASCII)
_YEAR_LAST = re.compile(r"(\d{1,2})([-/.]) ?(\d{1,2})\2 ?(\d{4})" + _TIME, re.ASCII)


def day(text: str, month_first: bool = False) -> float | None:
    """Return a date as days since 2000-01-01, with the time of day as a fraction; None if the text is no date.

    The forms are 2024-05-31, 2024/05/31, 20240531, 31.5.2024, 31/5/2024 and 31-5-2024, each perhaps followed by a
    time (14:30, T14:30:05Z), whose zone is ignored.
    """
    text = text.strip()
    if found := _YEAR_FIRST.fullmatch(text):
        year, mark, month, number, *time = found.groups()
        if not mark and len(text) != len("20240531"):
            return None
    elif found := _YEAR_LAST.fullmatch(text):
        number, mark, month, year, *time = found.groups()
        if mark == "/" and month_first:
            number, month = month, number
    else:
        return None
    hour, minute, second = (int(part or 0) for part in time)
    try:
        at = datetime(int(year), int(month), int(number), hour, minute, second)
    except ValueError:  # the 31st of April
        return None
    return at.toordinal() - START + (3600 * hour + 60 * minute + second) / 86_400


def format_value(value: Any) -> str:
    """Return a value of a table as text: a date as ISO 8601 has it, and a whole number without decimals.

    Whole numbers beside a missing value are floats in a data frame.
    """
    if hasattr(value, "isoformat"):
        return str(value.isoformat())
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def days(values: Sequence[Any], at: Callable[[int], str], month_first: bool = False) -> NDArray[np.float64]:
    """Return dates as days since 2000-01-01, ``(n,)`` with NaN for those that are missing.

    Args:
        values: Texts, dates, or whole numbers such as 20240531.

    Raises:
        DataError: If a value is no date.
    """
    found = np.full(len(values), np.nan)
    for row, value in enumerate(values):
        if value is None or value != value or value == "":
            continue
        number = day(format_value(value), month_first)
        if number is None:
            hint = "" if month_first else "; for 5/31/2024 set data.month_first=true"
            raise DataError(f"{at(row)}: {str(value)[:40]!r} is not a date: write 2024-05-31 or 31.5.2024{hint}")
        found[row] = number
    return found


def convert_dates(
    table: Mapping[str, Sequence[Any]],
    dates: Mapping[str, str],
    at: Callable[[str, int], str],
    month_first: bool = False,
) -> dict[str, NDArray[np.float64]]:
    """Return the columns of dates as numbers.

    Args:
        dates: ``data.dates``: by column, :data:`DAY` or the column from which days are counted back.

    Raises:
        DataError: If a value is no date.
    """
    read = {name: days(table[name], lambda row, name=name: at(name, row), month_first) for name in dates}  # type: ignore[misc]
    return {name: read[name] if other == DAY else read[other] - read[name] for name, other in dates.items()}
