"""Options that a named preset decides where the user does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

O = TypeVar("O", bound=Any)  # noqa: E741


def filled(options: O, presets: Mapping[str, Mapping[str, Any]]) -> O:
    """Return ``options`` whose values of None are those of the preset that ``options.preset`` names."""
    chosen = presets[options.preset]
    return replace(options, **{name: value for name, value in chosen.items() if getattr(options, name) is None})
