"""Checks that turn a wrong option or a wrong sample shape into one line."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral
from typing import Any, Literal, Union

import torch
from torch import Tensor, nn

from protofed.errors import ConfigError, ModelError, unknown_name
from protofed.options import option_name


def read_options(owner: str, Options: type, values: Mapping[str, Any] | None) -> Any:
    """Return ``Options(**values)`` after checking names and types.

    Lists become tuples and integers become floats where the field says so (TOML and JSON know no tuples).

    Args:
        owner: Whose options they are, for messages.
        Options: A frozen dataclass of :func:`protofed.options.option` fields.
        values: Names as users write them, to values.

    Raises:
        ConfigError: For an unknown name (with the nearest one), a value of the wrong type, or one that the
            dataclass refuses.
    """
    known = {option_name(f): f.name for f in fields(Options)}
    kinds = typing.get_type_hints(Options)
    given: dict[str, Any] = {}
    for name, value in (values or {}).items():
        if name not in known:
            raise ConfigError(unknown_name(f"option of {owner}", name, known))
        kind = kinds[known[name]]
        try:
            given[known[name]] = _convert(value, kind)
        except TypeError:
            raise ConfigError(f"{owner}: option {name} must be {_words(kind)}, not {value!r}") from None
    return Options(**given)


def _convert(value: Any, kind: Any) -> Any:
    """Return ``value`` as ``kind``; raise TypeError where it does not fit."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        for option in inner:
            try:
                return _convert(value, option)
            except TypeError:
                continue
    elif origin is Literal:
        if value in inner:
            return value
    elif origin is tuple and isinstance(value, (list, tuple)):
        if inner[-1] is Ellipsis:
            return tuple(_convert(v, inner[0]) for v in value)
        if len(value) == len(inner):
            return tuple(_convert(v, k) for v, k in zip(value, inner, strict=True))
    elif kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    elif isinstance(kind, type) and isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
        return value
    raise TypeError


def _words(kind: Any) -> str:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(k) for k in inner)
    if origin is Literal:
        return " or ".join(repr(k) for k in inner)
    if origin is tuple:
        count = "any number" if inner[-1] is Ellipsis else str(len(inner))
        return f"a list of {count} of {_words(inner[0])}"
    names = {bool: "true or false", int: "an integer", float: "a number", str: "a string", type(None): "none"}
    return names.get(kind, str(kind))


def require(condition: bool, message: str) -> None:
    """Raise ConfigError with ``message`` unless ``condition`` holds."""
    if not condition:
        raise ConfigError(message)


def show(shape: tuple[int, ...] | torch.Size) -> str:
    """Return a shape as people write it: ``1×28×28``."""
    return "×".join(str(n) for n in shape) or "()"


def check_shape(input_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of one sample as a tuple of positive integers, or raise ModelError."""
    shape = tuple(input_shape)
    if not shape or not all(isinstance(n, Integral) and n > 0 for n in shape):
        raise ModelError(f"input_shape {shape} must be positive integers: (C, H, W) or (F,)")
    return tuple(int(n) for n in shape)


def probe(module: nn.Module, input_shape: tuple[int, ...], what: str, hint: str = "") -> Any:
    """Return what ``module`` gives for two zero samples, in eval mode and without gradients.

    Every submodule's mode is restored.

    Raises:
        ModelError: If the module cannot take such samples; the message names ``what``, the shape, the
            reason torch gives, and ``hint``.
    """
    first = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(()))
    x = torch.zeros(2, *input_shape, dtype=first.dtype, device=first.device)
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            return module(x)
    except Exception as error:  # a user's forward may raise anything
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        advice = f"; {hint}" if hint else ""
        message = f"{what} cannot take samples of shape {show(input_shape)}: {reason.rstrip('.')}{advice}"
        raise ModelError(message) from error
    finally:
        for m, training in modes:
            m.training = training


def flat_width(module: nn.Module, input_shape: tuple[int, ...], what: str) -> int:
    """Return the width of a module's flat output ``(B, width)``; see :func:`probe` for what it raises."""
    out: Tensor = probe(module, input_shape, what, "use larger images or another architecture")
    if out.dim() != 2:
        raise ModelError(
            f"{what}: the backbone gives {show(out.shape)} for two samples, not (2, width): flatten"
        )
    return out.shape[1]
