"""Typed options: frozen dataclasses whose fields carry their own one-line documentation.

A component (method, partition, data set, model) declares its options as a frozen dataclass built from
:func:`option`. A field whose natural name is a Python keyword ends in an underscore (``lambda_``); users
write it without (``method.lambda=10``). :func:`build_options` turns what a user wrote into such a record.
"""

from __future__ import annotations

import contextlib
import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from protofed.errors import ConfigError, unknown_name

T = TypeVar("T")


def option(default: Any, doc: str) -> Any:
    """Return a dataclass field with a default and a one-line description (unit, equation or source)."""
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata={"doc": doc})
    return dataclasses.field(default=default, metadata={"doc": doc})


def option_name(field: dataclasses.Field[Any]) -> str:
    """Return the name users write for ``field``."""
    return field.name.rstrip("_")


def option_rows(options: type) -> list[tuple[str, Any, str]]:
    """Return ``(name, default, description)`` for every field of an options dataclass."""
    defaults = options()
    return [
        (option_name(f), getattr(defaults, f.name), f.metadata.get("doc", "")) for f in dataclasses.fields(options)
    ]


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """For a component without options."""


def build_options(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """Return an instance of the options dataclass ``cls`` from what a user wrote.

    Args:
        cls: A dataclass of plain types, ``Literal``, tuples, dicts and unions of them. Lists become tuples, and
            ``a,b`` as written on a command line does too; integers become floats where the field says so.
        values: Names as users write them, to values from TOML or the command line.
        where: Dotted prefix for messages, e.g. ``"method"``.

    Raises:
        ConfigError: For an unknown name (with the nearest valid one), a value of the wrong type, or one that
            the dataclass itself refuses (its ``ValueError`` becomes the message).
    """
    fields = {option_name(f): f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in values:
        if name not in fields:
            raise ConfigError(unknown_name(f"option of {where}", name, fields))
    hints = typing.get_type_hints(cls)
    arguments: dict[str, Any] = {}
    for name, value in values.items():
        field = fields[name].name
        try:
            arguments[field] = _convert(value, hints[field])
        except TypeError:
            raise ConfigError(f"{where}.{name} must be {_words(hints[field])}, not {value!r}") from None
    try:
        return cls(**arguments)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def plain(options: Any) -> dict[str, Any]:
    """Return an options record as a dict of plain values under the names users write."""
    return {option_name(f): getattr(options, f.name) for f in dataclasses.fields(options)}


def _convert(value: Any, kind: Any) -> Any:
    """Return ``value`` as ``kind`` without loss; raise TypeError where it does not fit."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
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
        return int(value)
    raise TypeError


def _split(value: Any) -> list[Any]:
    """Return the items of ``a,b,c`` as written on a command line; a single value is a list of one."""
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
        dict: "a table",
        type(None): "none",
    }
    return names.get(origin or kind, str(kind))
