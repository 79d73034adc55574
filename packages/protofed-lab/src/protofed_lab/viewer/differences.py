"""Configurations side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from protofed.runs.labels import flat

ABSENT = "–"
"""Shown where a configuration lacks an option."""


class Option(NamedTuple):
    """One option by its dotted name, and its text in each configuration (:data:`ABSENT` where it has none)."""

    name: str
    values: tuple[str, ...]
    differs: bool


def options(configurations: Sequence[Mapping[str, Any]]) -> list[Option]:
    """Return all options of some configurations, in their order.

    Options that only a later configuration has stand where their table ends.

    Example:
        >>> options([{"seed": 0, "method": {"name": "gfpl"}}, {"seed": 0, "method": {"name": "local"}}])[1]
        Option(name='method.name', values=('"gfpl"', '"local"'), differs=True)
    """
    tables = [flat(configuration) for configuration in configurations]
    names: list[str] = []
    for table in tables:
        for name in (n for n in table if n not in names):
            prefix = name.rpartition(".")[0]
            same = [i for i, known in enumerate(names) if known.rpartition(".")[0] == prefix]
            names.insert(same[-1] + 1 if same else len(names), name)
    result = []
    for name in names:
        values = tuple(_written(table[name]) if name in table else ABSENT for table in tables)
        result.append(Option(name, values, len(set(values)) > 1))
    return result


def _written(value: Any) -> str:
    """Return a value as it stands in a recipe."""
    return json.dumps(value, ensure_ascii=False, default=str)
