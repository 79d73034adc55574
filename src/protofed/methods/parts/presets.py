"""Options that a named preset decides where the user does not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

T = TypeVar("T")
O = TypeVar("O", bound=Any)  # noqa: E741

if TYPE_CHECKING:
    Preset = Annotated[T, "or None"]
else:

    class Preset:
        """Type of an option that may be None, for the preset's value.

        For type checkers it never is None: a method reads its options only after :func:`filled`.
        """

        def __class_getitem__(cls, kind: Any) -> Any:
            """Return ``kind | None``."""
            return kind | None


def filled(options: O, presets: Mapping[str, Mapping[str, Any]]) -> O:
    """Return options without None.

    Args:
        presets: Values by preset; each None becomes that of ``options.preset``.
    """
    chosen = presets[options.preset]
    return replace(options, **{name: value for name, value in chosen.items() if getattr(options, name) is None})
