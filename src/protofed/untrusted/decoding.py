"""Plain values of another party as typed records: the annotations of a class are what its values must be.

msgspec converts the values and checks types and bounds; what it finds wrong becomes one line that names the field
and says what would be right. Whoever reads a text limits its size before.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from protofed.errors import CheckpointError
from protofed.untrusted import claims, limits

T = TypeVar("T")

Count = Annotated[int, Meta(ge=0, lt=2**53)]
Large = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Ordinal = Annotated[int, Meta(ge=1, lt=2**53)]
Number = Annotated[float, Meta(gt=-1e300, lt=1e300)]
Fraction = Annotated[float, Meta(ge=0, le=1)]


def checked(function: Callable[[Any], T]) -> Any:
    """Return a type of values that a function returns, or refuses with a ValueError."""
    return type("checked", (_Checked,), {"_function": staticmethod(function)})


class _Any(type):
    def __instancecheck__(cls, value: object) -> bool:
        return True  # the value stays what it is: text remains str


class _Checked(metaclass=_Any):
    _function: Callable[[Any], Any]


def line(most: int = limits.CLASS_NAME) -> Any:
    """Return the type of texts of at most ``most`` characters without control characters."""

    def printable(value: object) -> str:
        if not isinstance(value, str):
            raise ValueError(f"expected text, not {_WORDS.get(type(value).__name__, type(value).__name__)}")
        if len(value) > most or not value.isprintable():
            raise ValueError(f"expected text of at most {most} characters without control characters")
        return value

    return checked(printable)


if TYPE_CHECKING:
    Line = str
    ClassName = str
    ClientName = str
else:
    Line, ClassName, ClientName = line(), checked(claims.class_name), checked(claims.client_name)


def decoded(value: object, kind: type[T], where: str = "", error: type[Exception] = CheckpointError) -> T:
    """Return plain values as a record.

    Args:
        kind: A dataclass or ``msgspec.Struct``; :func:`checked` gives types with rules of their own.
        where: What the message begins with.
        error: Its type.

    Raises:
        Exception: An ``error`` of one line, if the values are no such record.

    Example:
        >>> decoded({"a": [1, 2], "b": [3, "x"]}, dict[str, list[Count]], "counts.json")
        Traceback (most recent call last):
        ...
        protofed.errors.CheckpointError: counts.json: b[1]: expected a whole number, not text
    """
    try:
        found: T = _converted(value, kind)
    except msgspec.ValidationError as fault:
        said, steps = _parts(str(fault))
        place = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in _named(value, kind, steps, str(fault)))
        place = claims.clean(place.removeprefix("."), 120)
        parts = (where, f"{place} {said}") if place and said.startswith("lacks") else (where, place, said)
        raise error(": ".join(filter(None, parts))) from None
    return found


def _converted(value: object, kind: Any) -> Any:
    return msgspec.convert(value, kind, dec_hook=lambda kind, value: kind._function(value), builtin_types=(bytes,))


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "bytes": "bytes",
    "array": "a list",
    "list": "a list",
    "object": "a table",
    "dict": "a table",
    "null": "none",
    "NoneType": "none",
}
_PLACE = re.compile(r" - at `([^`]*)`(?: in `([^`]*)`)?")
_STEP = re.compile(r"\.([^.[]+)|\[(\d+|\.\.\.)\]")
_Steps = list[str | int | None]
"""The way to a value: names, positions in lists, and None for an entry of a table, which msgspec does not name."""


def _parts(message: str) -> tuple[str, _Steps]:
    """Return what msgspec says, in the words of files, and the way to the value."""
    places = "".join((b or a).replace("$", "") for a, b in reversed(_PLACE.findall(message)))
    steps: _Steps = [n or (None if i == "..." else int(i)) for n, i in _STEP.findall(places)]
    said = _PLACE.sub("", message)
    if found := re.fullmatch(r"Expected `([^`]*)`, got `([^`]*)`", said):
        allowed = [_WORDS.get(name, name) for name in found[1].split(" | ")]
        return f"expected {' or '.join(allowed)}, not {_WORDS.get(found[2], found[2])}", steps
    if found := re.fullmatch(r"Expected `\w+` ([<>]=?) (\S+)", said):
        words = {">=": "at least", "<=": "at most", ">": "above", "<": "below"}
        return f"must be {words[found[1]]} {found[2]}", steps
    if found := re.fullmatch(r"Expected `(\w+)` of length ([<>])= (\d+)", said):
        things = {"str": "characters", "bytes": "bytes"}.get(found[1], "entries" if found[3] != "1" else "entry")
        return f"must have at {'least' if found[2] == '>' else 'most'} {found[3]} {things}", steps
    if found := re.fullmatch(r"Expected `array` of length (\d+), got (\d+)", said):
        return f"expected a list of {found[1]}, not of {found[2]}", steps
    if found := re.fullmatch(r"Object missing required field `([^`]*)`", said):
        return f"lacks {found[1]!r}", steps
    return said, steps


def _named(value: Any, kind: Any, steps: _Steps, message: str) -> _Steps:
    """Return the way to a fault with the names of tables' entries, found by halves that have the same fault."""
    for depth, step in enumerate(steps):
        before = steps[:depth]
        keys = list(_at(value, before)) if step is None else []
        while len(keys) > 1:
            half = keys[: len(keys) // 2]
            try:
                _converted(_narrowed(value, before, half), kind)
                keys = keys[len(half) :]
            except msgspec.ValidationError as fault:
                keys = half if str(fault) == message else keys[len(half) :]
        steps = [*before, *keys, *steps[depth + 1 :]] if keys else steps
    return steps


def _at(value: Any, steps: _Steps) -> Any:
    return _at(value[steps[0]], steps[1:]) if steps else value


def _narrowed(value: Any, steps: _Steps, keys: list[Any]) -> Any:
    """Return a copy of plain values with only some entries of the table at the end of ``steps``."""
    if not steps:
        return {key: value[key] for key in keys}
    inner = _narrowed(value[steps[0]], steps[1:], keys)
    if isinstance(value, dict):
        return {**value, steps[0]: inner}
    return [inner if place == steps[0] else part for place, part in enumerate(value)]
