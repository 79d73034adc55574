"""Typed options: frozen dataclasses whose fields carry their own one-line documentation.

A component (method, partition, data set, model) declares its options as a frozen dataclass derived from
:class:`Options`, with fields created by :func:`option`, each with its default, description and range. A field whose
natural name is a Python keyword ends in an underscore (``lambda_``); users omit it (``method.lambda=10``).
:func:`build_options` creates such a record from the values that a user gave.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from protofed.errors import INSTEAD, ConfigError, OptionError, unknown_name

T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Range:
    """The range of a number; a bound of None does not apply."""

    least: float | None = None  #: Inclusive lower bound
    above: float | None = None  #: Exclusive lower bound
    most: float | None = None  #: Inclusive upper bound
    below: float | None = None  #: Exclusive upper bound

    def __contains__(self, value: float) -> bool:
        """Return whether ``value`` is in the range; NaN never is, unless there are no bounds."""
        return (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        """Return the range in words that follow "must be", or "" if there are no bounds."""
        if None not in (self.least, self.most):
            return f"from {self.least} to {self.most}"
        words = {"at least": self.least, "above": self.above, "at most": self.most, "below": self.below}
        return " and ".join(f"{word} {end}" for word, end in words.items() if end is not None)


def option(
    default: Any,
    doc: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    **more: Any,
) -> Any:
    """Return a dataclass field with a default, a description and the range of its values.

    A server cannot set it at a node: whatever says where files are, names code or tells how data are read belongs
    to whoever runs the program. :func:`remote` and :func:`named` declare what a server may set.

    Args:
        default: A dict is copied for every record.
        doc: One line of description, with unit, equation or source.
        least: Inclusive lower bound of a number, or of each number in a tuple; None passes any bound, NaN none.
        more: Further metadata.
    """
    metadata = {"doc": doc, "range": Range(least, above, most, below), "setter": "here", **more}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def remote(default: Any, doc: str, **bounds: Any) -> Any:
    """Return an :func:`option` that a server may set at a node: numbers, flags and choices among given words."""
    return option(default, doc, setter="server", **bounds)


def named(default: Any, doc: str, *, of: str) -> Any:
    """Return an :func:`option` that a server may set at a node to names, which the node checks.

    Args:
        of: Kind of what is named, one of ``protofed.config.remote.KINDS``, e.g. ``"models"``; "" for words that
            name nothing outside a run. An option that is a table holds options of what ``name`` beside it, or in
            it, names.
    """
    return option(default, doc, setter="server", of=of)


def fixed(value: Any) -> Any:
    """Return a dataclass field that fixes an inherited option at ``value``, so that users cannot set it."""
    return dataclasses.field(default=value, init=False)


def option_fields(options: type) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields of an options dataclass that users can set, by the names that users write."""
    kind: Any = options
    return _fields(kind)


@cache
def _fields(options: Any) -> dict[str, dataclasses.Field[Any]]:
    return {option_name(f): f for f in dataclasses.fields(options) if f.init}


def option_name(field: dataclasses.Field[Any]) -> str:
    """Return the name that users write for ``field``."""
    return field.name.rstrip("_")


def option_rows(options: type) -> list[tuple[str, Any, str]]:
    """Return ``(name, default, description)`` for every field of an options dataclass."""
    defaults, hints = options(), _hints(typing.cast(typing.Hashable, options))
    return [
        (name, getattr(defaults, f.name), _text(f, hints[f.name])) for name, f in option_fields(options).items()
    ]


@dataclasses.dataclass(frozen=True)
class Options:
    """Base class of all options, which rejects values outside the ranges that its fields declare.

    A subclass with further conditions overrides ``__post_init__``, calls that of this class first, and raises
    ValueError.
    """

    def __post_init__(self) -> None:
        for name, field in option_fields(type(self)).items():
            _check_range(name, field, getattr(self, field.name))


@dataclasses.dataclass(frozen=True)
class NoOptions(Options):
    """Options of a component without options."""


@cache
def _hints(cls: typing.Any) -> dict[str, Any]:
    """Return the types of a dataclass's fields, which take a while to evaluate."""
    return typing.get_type_hints(cls)


def build_options(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Return an instance of the options dataclass ``cls`` from the values that a user gave.

    Args:
        cls: A dataclass of plain types, ``Literal``, tuples, dicts and unions of them. Lists become tuples, as does
            ``a,b`` from a command line; integers become floats for a field of that type.
        values: By the names that users write.
        where: Dotted prefix for messages, e.g. ``"method"``.

    Raises:
        ConfigError: If a name is unknown (the message suggests the nearest valid one), or a value has the wrong
            type, is outside its range, or is rejected by the dataclass (the message is that of its ``ValueError``).
    """
    fields = option_fields(cls)
    for name in values:
        if name not in fields:
            raise ConfigError(unknown_name(f"option of {where}", name, fields))
    hints = _hints(typing.cast(typing.Hashable, cls))
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        field = fields[name]
        kind = hints[field.name]
        try:
            arguments[field.name] = _convert(value, kind)
        except TypeError:
            if instead := INSTEAD.get((f"{where}.{name}", str(value))):
                raise ConfigError(f"{where}.{name}={value} {instead}") from None
            raise ConfigError(f"{where}.{name} must be {_words(kind)}, not {value!r}") from None
        except OverflowError:
            raise ConfigError(f"{where}.{name}: an integer must have at most 64 bits") from None
        _check_range(f"{where}.{name}", field, arguments[field.name])
    try:
        return cls(**arguments)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def plain(options: Any) -> dict[str, Any]:
    """Return an options record as a dict of plain values, by the names that users write."""
    return {name: getattr(options, f.name) for name, f in option_fields(type(options)).items()}


def _check_range(name: str, field: dataclasses.Field[Any], value: Any) -> None:
    """Raise OptionError if a number of ``value`` is outside the field's range."""
    allowed = field.metadata.get("range")
    if allowed is None:
        return
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, (int, float)) and number not in allowed:
            raise OptionError(f"{name} must be {allowed}, not {number:g}")


def _text(field: dataclasses.Field[Any], kind: Any) -> str:
    """Return a field's description, with its range, or with its choices unless the description names them all."""
    doc = field.metadata.get("doc", "")
    limits = str(field.metadata.get("range", ""))
    choices = [str(choice) for part in (kind, *typing.get_args(kind)) for choice in _choices(part)]
    if not all(choice in doc for choice in choices):
        limits = f"one of {', '.join(choices)}"
    return "; ".join(filter(None, (doc, limits)))


def _choices(kind: Any) -> tuple[Any, ...]:
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()


def _convert(value: Any, kind: Any) -> Any:
    """Return ``value`` as ``kind`` without loss."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise OverflowError
    if origin in (typing.Union, types.UnionType):
        for choice in inner:
            with contextlib.suppress(TypeError):
                return _convert(value, choice)
    elif origin is typing.Literal:
        if value in inner:
            return value
    elif origin is tuple:
        items = value if isinstance(value, (list, tuple)) else _split(value)
        kinds = [inner[0]] * len(items) if inner[-1] is Ellipsis else list(inner)
        if len(kinds) == len(items):
            return tuple(_convert(item, k) for item, k in zip(items, kinds, strict=True))
    elif (origin or kind) is dict:
        if isinstance(value, Mapping):
            return dict(value)
    elif kind is Any or (isinstance(value, kind) and (kind is bool or not isinstance(value, bool))):
        return value
    elif kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif kind is int and isinstance(value, float) and value.is_integer():
        return _convert(int(value), int)
    raise TypeError


def _split(value: Any) -> list[Any]:
    """Return the items of ``a,b,c`` from a command line; a single value becomes a list of one."""
    if not isinstance(value, str):
        return [value]
    return [_number(item.strip()) for item in value.split(",") if item.strip()]


def _number(text: str) -> Any:
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return text


def _words(kind: Any) -> str:
    """Return a type in words."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_words(k) for k in inner)
    if origin is typing.Literal:
        return " or ".join(repr(k) for k in inner)
    if origin is tuple:
        count = "" if inner[-1] is Ellipsis else f"{len(inner)} times "
        return f"a list of {count}{_words(inner[0])}"
    names = {
        int: "an integer",
        float: "a number",
        str: "text",
        bool: "true or false",
        dict: "a table such as {name = value}",
        type(None): "none",
    }
    return names.get(origin or kind, str(kind))
