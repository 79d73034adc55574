"""Kinds of values in the files of a run: nothing that a file says is trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protofed.untrusted import limits

_NUMBERS = {int, float, type(None)}


def is_count(value: Any, least: int = 0, most: int = 2**53) -> bool:
    """Return whether a value is an integer in ``[least, most)``; a bool is none.

    Args:
        most: What it must stay below.
    """
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < most


def is_number(value: Any) -> bool:
    """Return whether a value is a number of moderate size; a bool is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1e300 < value < 1e300


def is_text(value: Any, most: int = limits.CLASS_NAME) -> bool:
    """Return whether a value is a text without control characters."""
    return isinstance(value, str) and len(value) <= most and value.isprintable()


def are_texts(values: Any) -> bool:
    """Return whether a value is a list of texts."""
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def are_counts(values: Any) -> bool:
    """Return whether a value is a list of counts."""
    return isinstance(values, list) and all(map(is_count, values))


def are_numbers(values: Any) -> bool:
    """Return whether a value is a list of numbers or None."""
    if not isinstance(values, list) or not _NUMBERS.issuperset(map(type, values)):
        return False
    known = [value for value in values if value is not None] or [0.0]
    total = float(sum(known))  # NaN if one of them is
    return -1e300 < min(known) <= max(known) < 1e300 and total == total


def are_named_numbers(values: Any) -> bool:
    """Return whether a value is a table of numbers or None."""
    return isinstance(values, dict) and are_numbers(list(values.values()))


def are_tables(values: Any, texts: Sequence[str]) -> bool:
    """Return whether a value is a list of tables that all have certain texts."""
    return isinstance(values, list) and all(
        isinstance(entry, dict) and all(isinstance(entry.get(name), str) for name in texts) for entry in values
    )
