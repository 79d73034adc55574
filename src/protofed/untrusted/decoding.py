"""Plain values of another party as typed records: the annotations of a class are what its values must be.

msgspec converts the values and checks types and bounds; what it finds wrong becomes one line that names the field
and says what would be right. Whoever reads a text limits its size before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from protofed.errors import CheckpointError, PayloadError
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
            raise ValueError(f"expected text, not {claims.shown(value)}")
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
        kind: Dataclass or ``msgspec.Struct``; :func:`checked` gives types with rules of their own.
        where: Beginning of the message.
        error: Type of the error.

    Example:
        >>> decoded({"a": [1, 2], "b": [3, "x"]}, dict[str, list[Count]], "counts.json")
        Traceback (most recent call last):
        ...
        protofed.errors.CheckpointError: counts.json: b[1]: expected a whole number, not 'x'
    """
    try:
        found: T = _converted(value, kind)
    except msgspec.ValidationError as fault:
        message = _message(fault)
        unnamed = _steps(message)
        steps = _named(value, kind, unnamed, message)
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
        place = claims.clean(place.removeprefix("."), 120)
        said = _in_words(_END.sub("", message), _at(value, steps), kind, unnamed)
        parts = (where, f"{place} {said}") if place and said.startswith("lacks") else (where, place, said)
        raise error(": ".join(filter(None, parts))) from None
    return found


def take(values: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """Return a value of a message."""
    return decoded(values.get(name), kind, name, PayloadError)


def _converted(value: object, kind: Any) -> Any:
    def hook(kind: Any, value: object) -> Any:
        return kind._function(value)

    try:
        return msgspec.convert(value, kind, dec_hook=hook, builtin_types=(bytes,), str_keys=True)
    except UnicodeEncodeError:
        raise msgspec.ValidationError("contains an unpaired surrogate: expected Unicode text") from None


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
    "null": "none",
}
_PLACE = re.compile(r" - at `([^`]*)`(?: in `([^`]*)`)?")
_END = re.compile(rf"({_PLACE.pattern})*\Z")
"""The beginning of a place in msgspec's messages; before it, they may quote another party."""
_STEP = re.compile(r"\.([^.[]+)|\[(\d+|\.\.\.)\]")
_Steps = list[str | int | None]
"""The way to a value: names, positions in lists, and None for an entry of a table, which msgspec does not name."""


def _message(fault: msgspec.ValidationError) -> str:
    text = str(fault)
    return text if len(text) < 1000 else f"{text[:100]}…{text[-800:]}"  # it may quote a text of any length


def _steps(message: str) -> _Steps:
    found = _PLACE.findall(message, _END.search(message).start())  # type: ignore[union-attr]  # it always matches
    places = "".join((b or a).replace("$", "") for a, b in reversed(found))
    return [name or (None if place == "..." else int(place)) for name, place in _STEP.findall(places)]


def _in_words(said: str, value: object, kind: Any, steps: _Steps) -> str:
    """Return msgspec's verdict on a value in the words of files."""
    shown = "none" if value is None else claims.shown(value)
    if found := re.fullmatch(r"Expected `([^`]*)`, got `[^`]*`", said):
        return f"expected {' or '.join(_WORDS.get(name, name) for name in found[1].split(' | '))}, not {shown}"
    if found := re.fullmatch(r"Expected `\w+` ([<>]=?) (\S+)", said):
        words = {">=": "at least", "<=": "at most", ">": "above", "<": "below"}
        return f"must be {words[found[1]]} {found[2]}, not {shown}"
    if found := re.fullmatch(r"Expected `(\w+)` of length ([<>])= (\d+)", said):
        things = "characters" if found[1] == "str" else "entries" if found[3] != "1" else "entry"
        return f"must have at {'least' if found[2] == '>' else 'most'} {found[3]} {things}, not {shown}"
    if found := re.fullmatch(r"Expected `array` of length (\d+), got \d+", said):
        return f"expected a list of {found[1]}, not {shown}"
    if found := re.fullmatch(r"Object missing required field `([^`]*)`", said):
        return f"lacks {found[1]!r}"
    if said.startswith("Invalid enum value"):
        *others, last = get_args(_kind_at(kind, steps))
        return f"must be {', '.join(others)} or {last}, not {shown}"
    return said


def _kind_at(kind: Any, steps: _Steps) -> Any:
    """Return the annotation of a value inside one of a kind."""
    while get_origin(kind) in (Annotated, Union, UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
    if not steps:
        return kind
    step, *rest = steps
    if isinstance(step, str):
        return _kind_at(get_type_hints(kind, include_extras=True)[step], rest)
    return _kind_at(get_args(kind)[0 if isinstance(step, int) else 1], rest)


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
                keys = half if _message(fault) == message else keys[len(half) :]
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
