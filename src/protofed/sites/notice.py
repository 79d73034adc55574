"""One notice about the data of a folder, with the options that would settle it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from protofed.untrusted import claims

SHOWN = 300
"""Most characters of a text."""


@dataclass(frozen=True)
class Notice:
    """Something about the data that a person should know before a run.

    Attributes:
        site: Name of the site, or of the file; "" for all sites.
        column: Name of the column; "" for the whole table, or where there is none.
        proposal: What to do about it; "" if it is only worth knowing.
        options: Values by dotted name that carry out the proposal. Lists and tables add to those of other notices.
        open: Whether no option can mend it: a person has to.
        asks: Whether a person should look at it first.
    """

    site: str
    column: str
    found: str
    proposal: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    open: bool = False
    asks: bool = False

    def __post_init__(self) -> None:
        """Take out of texts of files what would break a line of a terminal or a recipe."""
        for name in ("site", "column", "found", "proposal"):
            object.__setattr__(self, name, claims.clean(getattr(self, name), SHOWN))


def combine(notices: Iterable[Notice]) -> dict[str, Any]:
    """Return the options of all notices together."""
    options: dict[str, Any] = {}
    for notice in notices:
        options = both(options, notice.options)
    return options


def both(first: Any, second: Any) -> Any:
    """Return two values of one option together: tables and lists have the entries of both."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return {**first, **{n: both(first[n], v) if n in first else v for n, v in second.items()}}
    if isinstance(first, list) and isinstance(second, list):
        return list(dict.fromkeys([*first, *second]))
    return second
