"""The recipe for a folder: what its data need, before a built-in text for their kind."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import tomli_w

from protofed.config.schema import apply_overrides
from protofed.sites.notice import Notice, both, combine
from protofed.storage.files import write_text
from protofed.untrusted.reading import parse_toml


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
