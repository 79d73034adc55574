"""The options of figures: read from their signatures, checked like those of any other component."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protofed.analysis.figures.base import Draw, figures
from protofed.errors import ConfigError, unknown_name
from protofed.options import build_options, option, option_rows
from protofed.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figure_rows(name: str) -> list[tuple[str, Any, str]]:
    """Return ``(option, default, description)`` for every option of a figure."""
    return option_rows(_options(figures.get(name)))


def draw_figure(name: str, runs: Sequence[Run], values: Mapping[str, Any]) -> Figure:
    """Return the figure ``name`` of ``runs``, with options as users write them."""
    draw = figures.get(name)
    options = build_options(_options(draw), values, f"figure {name}")
    return draw(list(runs), **{f.name: getattr(options, f.name) for f in dataclasses.fields(options)})


def place_of(names: Sequence[str], wanted: str | int | None, kind: str) -> int:
    """Return the place of a class or client that is given by name, or else by number; the first if None.

    Example:
        >>> place_of(["3", "1", "4"], 1, "class"), place_of(["cat", "dog"], 1, "class")
        (1, 1)
    """
    if wanted is None:
        return 0
    if str(wanted) in names:
        return names.index(str(wanted))
    if isinstance(wanted, int) and 0 <= wanted < len(names):
        return wanted
    raise ConfigError(unknown_name(kind, str(wanted), names))


def _options(draw: Draw) -> Any:
    """Return an options record like any component's, made from a figure's signature and its docstring."""
    described = dict(re.findall(r"^ {4}(\w+): (.*)$", inspect.getdoc(draw) or "", re.MULTILINE))
    _, *parameters = inspect.signature(draw).parameters.values()
    fields = [(p.name, p.annotation, option(p.default, described.get(p.name.rstrip("_"), ""))) for p in parameters]
    # Annotations are strings: they are looked up in the module of the figure.
    return dataclasses.make_dataclass("Options", fields, frozen=True, namespace={"__module__": draw.__module__})
