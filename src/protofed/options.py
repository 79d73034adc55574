"""Typed options: frozen dataclasses whose fields carry their own one-line documentation.

A component (method, partition, data set, model) declares its options as a frozen dataclass built from
:func:`option`. A field whose natural name is a Python keyword ends in an underscore (``lambda_``); users
write it without (``method.lambda=10``). :func:`build_options` turns what a user wrote into such a record.
"""

from __future__ import annotations

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
        cls: A dataclass of plain types, ``Literal``, ``tuple[X, ...]``, ``X | None``, dicts or nested
            dataclasses.
        values: Names as users write them, to values from TOML or the command line.
        where: Dotted prefix for messages, e.g. ``"method"``.

    Raises:
        ConfigError: For an unknown name (with the nearest valid one), a value of the wrong type, or one that
            the dataclass itself refuses (its ``ValueError`` becomes the message).
    """
    fields = {option_name(f): f for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    for name in values:
        if name not in fields:
            raise ConfigError(unknown_name(f"option {where}.*:", name, fields))
    hints = typing.get_type_hints(cls)
    arguments = {
        fields[name].name: _convert(value, hints[fields[name].name], f"{where}.{name}")
        for name, value in values.items()
    }
    try:
        return cls(**arguments)
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None


def plain(options: Any) -> dict[str, Any]:
    """Return an options record as a dict of plain values under the names users write."""
    return {
        option_name(f): plain(value) if dataclasses.is_dataclass(value) else value
        for f in dataclasses.fields(options)
        for value in [getattr(options, f.name)]
    }


def _convert(value: Any, hint: Any, where: str) -> Any:
    """Return ``value`` as type ``hint``; lossless conversions only."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return _convert(value, next(a for a in arguments if a is not type(None)), where)
    if origin is typing.Literal:
        if value in arguments:
            return value
        raise ConfigError(unknown_name(where, str(value), map(str, arguments)))
    if origin is tuple:
        items = value if isinstance(value, (list, tuple)) else _split(value)
        return tuple(_convert(item, arguments[0], where) for item in items)
    if origin is dict or hint is dict:
        if isinstance(value, Mapping):
            return dict(value)
    elif dataclasses.is_dataclass(hint):
        if isinstance(value, Mapping):
            return build_options(hint, value, where)  # type: ignore[arg-type]
    elif hint is Any or type(value) is hint:
        return value
    elif hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    elif hint is int and isinstance(value, float) and value.is_integer():
        return int(value)
    expected = "a table" if isinstance(hint, type) and dataclasses.is_dataclass(hint) else _type_name(hint)
    raise ConfigError(f"{where} must be {expected}, not {value!r}")


def _split(value: Any) -> list[Any]:
    """Return the items of ``a,b,c`` as written on a command line; a single value is a list of one."""
    if not isinstance(value, str):
        return [value]
    return [_number(item.strip()) for item in value.split(",") if item.strip()]


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _type_name(hint: Any) -> str:
    names = {int: "an integer", float: "a number", str: "text", bool: "true or false", dict: "a table"}
    return names.get(typing.get_origin(hint) or hint, str(hint))
