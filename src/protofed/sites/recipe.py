"""Notices about the data of a folder, and the recipe that follows from them before a built-in text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from protofed.config.schema import apply_overrides
from protofed.storage.files import write_text
from protofed.untrusted import claims
from protofed.untrusted.reading import parse_toml

SHOWN = 300  #: Most characters of a text


@dataclass(frozen=True)
class Notice:
    """Something about the data that a person should know before a run."""

    site: str  #: Name of the site, or of the file; "" for all sites
    column: str  #: Name of the column; "" for the whole table, or where there is none
    found: str
    proposal: str = ""  #: What to do about it; "" if it is only worth knowing
    #: Values by dotted name that carry out the proposal. Lists and tables add to those of other notices
    options: Mapping[str, Any] = field(default_factory=dict)
    open: bool = False  #: Whether no option can mend it: a person has to
    asks: bool = False  #: Whether a person should look at it first

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


def text_of(
    kind: str, notices: Iterable[Notice], source: Mapping[str, Any], overrides: Mapping[str, Any] | None = None
) -> str:
    """Return a recipe that runs, as TOML.

    Args:
        kind: ``table``, ``text``, ``vector``, ``series`` or ``image``.
        notices: Those whose proposals are carried out.
        overrides: Further options by dotted name; lists and tables add to those of notices.
    """
    general = _general(kind)
    usual, own = parse_toml(general), apply_overrides({}, {**source, **combine(notices)})
    asked = {name: both(_at(own, name), value) for name, value in (overrides or {}).items()}
    tree = apply_overrides({**usual, **own}, asked)
    if any(tree.get(name) != value for name, value in usual.items()):
        return tomli_w.dumps(tree)  # without the comments, which are on what was usual
    head, model, rest = general.partition("\n# ")
    return f"{head}\n{tomli_w.dumps({n: v for n, v in tree.items() if n not in usual})}{model}{rest}"


def _general(name: str) -> str:
    """Return a built-in text, with those that it includes by lines such as ``#include run``."""
    text = (resources.files(__package__) / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
    return re.sub(r"^#include (\w+)\n", lambda found: _general(found[1]), text, flags=re.MULTILINE)


def _at(tree: Any, name: str) -> Any:
    for step in name.split("."):
        tree = tree.get(step) if isinstance(tree, Mapping) else None
    return tree


def write(path: Path, text: str, notices: Sequence[Notice], refused: Sequence[Notice] = ()) -> None:
    """Write a recipe, with what was found as comments.

    Args:
        refused: Those of the notices whose proposal was not taken.

    Raises:
        OutputError: If the file cannot be written.
    """
    lines = [
        f"# Written by `protofed init`; it runs as it is: protofed run {path.name} (see: protofed list options)",
        *(f"# {'not taken: ' if notice in refused else ''}{format_notice(notice)}" for notice in notices),
    ]
    write_text(path, "\n".join(lines) + f"\n\n{text}")


def format_notice(notice: Notice) -> str:
    """Return a notice in one line."""
    where = ": ".join(part for part in (notice.site, notice.column, notice.found) if part)
    return where + (f" → {notice.proposal}" if notice.proposal else "")
