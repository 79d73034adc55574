"""Plain values of another party as typed records: the annotations of a class are what its values must be.

msgspec converts the values and checks types and bounds; what it finds wrong becomes one line that names the field
and says what would be right. The size of a text is limited before it is read.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache
from itertools import starmap
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    TypedDict,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import msgspec
from msgspec import Meta

from protofed.errors import CheckpointError, PayloadError, unknown_name
from protofed.options import Range
from protofed.untrusted import claims, limits
from protofed.untrusted.reading import parse_json

T = TypeVar("T")


_BOUNDS = {"least": "ge", "above": "gt", "most": "le", "below": "lt"}


def within(**bounds: float) -> Meta:
    """Return the bounds of a number, declared as those of options: ``least``, ``above``, ``most``, ``below``."""
    short: dict[str, Any] = {_BOUNDS[name]: end for name, end in bounds.items()}
    return Meta(**short)


Count = Annotated[int, within(least=0, below=2**53)]
Large = Annotated[int, within(least=0, most=2**63 - 1)]
Ordinal = Annotated[int, within(least=1, below=2**53)]
LARGEST = 1e300
Number = Annotated[float, within(above=-LARGEST, below=LARGEST)]
Fraction = Annotated[float, within(least=0, most=1)]
Round = Annotated[int, within(least=0, most=limits.ROUNDS)]
SampleCount = Annotated[int, within(least=0, most=limits.CLAIMED_SAMPLES)]
Side = Annotated[int, within(least=1, most=limits.INPUT_SIDE)]
Identifier = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}\Z")]
"""Name of a network, a prediction rule or an option."""


def check_with(function: Callable[[Any], T]) -> Any:
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
            raise ValueError(f"expected text, not {claims.describe(value)}")
        if len(value) > most or not value.isprintable():
            raise ValueError(f"expected text of at most {most} characters without control characters")
        return value

    return check_with(printable)


def _class_names(values: object) -> tuple[str, ...]:
    kind: Any = Annotated[tuple[ClassName, ...], Meta(max_length=limits.CLASSES)]
    names: tuple[str, ...] = decode(values, kind, error=ValueError)
    if len(set(names)) < len(names):
        raise ValueError(f"{claims.clean(Counter(names).most_common(1)[0][0], 80)!r} occurs more than once")
    return names


def _shape(values: object) -> tuple[int, ...]:
    kind: Any = Annotated[tuple[Side, ...], Meta(min_length=1, max_length=limits.INPUT_DIMENSIONS)]
    sides: tuple[int, ...] = decode(values, kind, error=ValueError)
    if (size := math.prod(sides)) > limits.INPUT_NUMBERS:
        raise ValueError(f"{size} numbers per sample, at most {limits.INPUT_NUMBERS} are allowed")
    return sides


if TYPE_CHECKING:
    Line = str
    ClassName = str
    ClassNames = tuple[str, ...]
    ClientName = str
    ModelName = str
    Shape = tuple[int, ...]
    Disclosure = str
else:
    Line, ClassName, ClientName = line(), check_with(claims.class_name), check_with(claims.client_name)
    ClassNames, ModelName, Shape = check_with(_class_names), check_with(claims.model), check_with(_shape)
    Disclosure = Literal[claims.COUNTS]


class Settings(TypedDict, total=False):
    """Settings that a client may choose in its ``client.toml``."""

    model: ModelName
    d: Side
    epochs: Annotated[int, within(least=1, most=1000)]
    batch_size: Annotated[int, within(least=1, most=10**6)]
    lr: Annotated[float, within(above=0, most=10)]
    counts: Disclosure
    least_samples: SampleCount


def parse(text: object, where: str, most: int = limits.JSON_CHARACTERS) -> Any:
    """Return the value of a JSON text of at most ``most`` characters.

    Raises:
        ValueError: If it is none, or has a number that no file has.
    """
    if not isinstance(text, str):
        raise ValueError(f"{where}: expected text, not {claims.describe(text)}")
    if len(text) > most:
        raise ValueError(f"{where}: {len(text)} characters, at most {most} are allowed")
    try:
        return parse_json(text)
    except UnicodeEncodeError:
        raise ValueError(f"{where}: contains an unpaired surrogate: expected Unicode text") from None
    except (ValueError, MemoryError) as error:
        raise ValueError(f"{where}: not JSON ({claims.clean(error, 120)})") from None


def decode(
    value: object,
    kind: type[T],
    where: str = "",
    error: type[Exception] = CheckpointError,
    *,
    exact: bool = False,
) -> T:
    """Return plain values as a record.

    Args:
        kind: Dataclass or ``msgspec.Struct``; :func:`checked` gives types with rules of their own.
        where: Beginning of the message.
        error: Type of the error.
        exact: Whether records may have no other names than those of their fields.

    Raises:
        Exception: An ``error`` of one line, if the values are no such record.

    Example:
        >>> decode({"a": [1, 2], "b": [3, "x"]}, dict[str, list[Count]], "counts.json")
        Traceback (most recent call last):
        ...
        protofed.errors.CheckpointError: counts.json: b[1]: expected a whole number, not 'x'
    """
    if exact and (unknown := _unknown(value, kind)):
        raise error(": ".join(filter(None, (where, unknown))))
    try:
        found: T = _convert(value, kind)
    except msgspec.ValidationError as fault:
        message = _message(fault)
        unnamed = _steps(message)
        steps = _name_entries(value, kind, unnamed)
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
        place = claims.clean(place.removeprefix("."), 120)
        said = _in_words(_END.sub("", message), _at(value, steps), kind, unnamed)
        between = "" if said.startswith("[") else " " if said.startswith("lacks") else ": "
        raise error(": ".join(filter(None, (where, f"{place}{between if place else ''}{said}")))) from None
    return found


def take(values: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """Return a value of a message."""
    return decode(values.get(name), kind, name, PayloadError)


def _unknown(value: object, kind: Any) -> str:
    """Return what is wrong with a name that is no field of its record; "" if there is none."""
    origin, inner = get_origin(kind), get_args(kind)
    parts: list[tuple[object, Any]] = []
    if origin is Annotated:
        parts = [(value, inner[0])]
    elif origin in (Union, UnionType):
        parts = [(value, part) for part in inner]
    elif isinstance(value, (list, tuple)) and origin in (list, tuple):
        parts = [(part, inner[0]) for part in value]
    elif isinstance(value, Mapping) and origin in (dict, Mapping):
        parts = [(part, inner[1]) for part in value.values()]
    elif isinstance(value, Mapping) and (is_dataclass(kind) or is_typeddict(kind)):
        fields = _fields(kind)
        if (strange := next((name for name in value if name not in fields), None)) is not None:
            what = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__.strip("_")).lower().removesuffix("s")
            return unknown_name(what, claims.clean(strange, 40), fields)
        parts = [(part, fields[name]) for name, part in value.items()]
    return next(filter(None, starmap(_unknown, parts)), "")


@cache
def _fields(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _convert(value: object, kind: Any) -> Any:
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
    shown = "none" if value is None else claims.describe(value)
    if found := re.fullmatch(r"Expected `([^`]*)`, got `[^`]*`", said):
        return f"expected {' or '.join(_WORDS.get(name, name) for name in found[1].split(' | '))}, not {shown}"
    if found := re.fullmatch(r"Expected `\w+` ([<>]=?) (\S+)", said):
        return f"must be {_range(_kind_at(kind, steps))}, not {shown}"
    if found := re.fullmatch(r"Expected `(\w+)` of length ([<>])= (\d+)", said):
        things = "characters" if found[1] == "str" else "entries" if found[3] != "1" else "entry"
        return f"must have at {'least' if found[2] == '>' else 'most'} {found[3]} {things}, not {shown}"
    if found := re.fullmatch(r"Expected `array` of length (\d+), got \d+", said):
        return f"expected a list of {found[1]}, not {shown}"
    if found := re.fullmatch(r"Object missing required field `([^`]*)`", said):
        return f"lacks {found[1]!r}"
    if said.startswith("Invalid enum value"):
        *others, last = get_args(_bare(_kind_at(kind, steps)))
        return f"must be {', '.join(others)} or {last}, not {shown}"
    if said.startswith("Expected `str` matching"):
        return "expected names of up to 64 letters, digits and underscores"
    return "is too large a number" if said == "Number out of range" else said


def _bare(kind: Any) -> Any:
    """Return an annotation without bounds; of several types the record, else the first."""
    while get_origin(kind) in (Annotated, Union, UnionType):
        choices = [part for part in get_args(kind) if part is not type(None)]
        kind = next(filter(is_dataclass, choices), choices[0])
    return kind


def _kind_at(kind: Any, steps: _Steps) -> Any:
    """Return the annotation of a value inside one of a kind."""
    if not steps:
        return kind
    step, *rest = steps
    kind = _bare(kind)
    if isinstance(step, str):
        return _kind_at(_fields(kind)[step.replace("-", "_")], rest)
    return _kind_at(get_args(kind)[0 if isinstance(step, int) else 1], rest)


def _range(kind: Any) -> Range:
    while get_origin(kind) in (Union, UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
    bounds = next(part for part in get_args(kind)[1:] if isinstance(part, Meta))
    return Range(**{name: getattr(bounds, short) for name, short in _BOUNDS.items()})


def _name_entries(value: Any, kind: Any, steps: _Steps) -> _Steps:
    """Return the way to a fault with the names of tables' entries: the first that is no such entry by itself."""
    named = [*steps]
    for depth, step in enumerate(steps):
        if step is None:
            inner = _bare(_kind_at(kind, steps[:depth]))  # a key is no name of a field
            entries = _at(value, named[:depth]).items()
            named[depth] = next(key for key, entry in entries if _fails({key: entry}, inner))
    return named


def _fails(value: object, kind: Any) -> bool:
    try:
        _convert(value, kind)
    except msgspec.ValidationError:
        return True
    return False


def _at(value: Any, steps: _Steps) -> Any:
    return _at(value[steps[0]], steps[1:]) if steps else value
