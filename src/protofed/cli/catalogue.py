"""The entries of ``protofed list``: names for use in recipes, and figures of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from protofed.errors import ConfigError, unknown_name
from protofed.options import option_rows


class Listed(NamedTuple):
    """One entry of a list, with its options as ``(name, default, description)``."""

    name: str
    summary: str
    options: list[tuple[str, Any, str]]


def _methods() -> list[Listed]:
    from protofed.methods import methods

    return [
        Listed(
            name,
            f"{m.summary} (exchanges {m.traits(m.Options()).exchanges}{m.reference and f'; {m.reference}'})",
            option_rows(m.Options),
        )
        for name, m in sorted(methods().items())
    ]


def _models() -> list[Listed]:
    from protofed.models import groups

    return _registered("protofed.models", "architectures") + [
        Listed(n, f"group: {g.summary}", []) for n, g in sorted(groups.items())
    ]


def _registered(module: str, name: str) -> list[Listed]:
    found = getattr(import_module(module), name)
    return [Listed(n, entry.summary, option_rows(entry.Options)) for n, entry in sorted(found.items())]


def _encoders() -> list[Listed]:
    auto = Listed("auto", "scattering for images, hashing for texts, random for anything else", [])
    return [auto, *_registered("protofed.models.encoders", "encoders")]


def _recipes() -> list[Listed]:
    from protofed.config.schema import load_recipe, recipes

    return [Listed(name, load_recipe(name).get("summary", ""), []) for name in recipes()]


def _variants() -> list[Listed]:
    from protofed.config.schema import variants
    from protofed.runs.labels import flat

    return [Listed(n, ", ".join(f"{k}={value}" for k, value in flat(v).items()), []) for n, v in variants().items()]


def _figures() -> list[Listed]:
    from protofed.analysis.figures import figure_rows, figures

    return [
        Listed(n, (d.__doc__ or "").strip().splitlines()[0], figure_rows(n)) for n, d in sorted(figures.items())
    ]


def _options() -> list[Listed]:
    from protofed.config.schema import SCALARS, SECTIONS

    general = [(name, default, _SCALARS[name]) for name, default in SCALARS.items()]
    sections = [
        Listed(n, (kind.__doc__ or "").strip().splitlines()[0], option_rows(kind)) for n, kind in SECTIONS.items()
    ]
    return [Listed("general", "Options without a section.", general), *sections]


_SCALARS = {
    "recipe": "name of the recipe in tables and directories",
    "seed": "seed of the split, the initial weights, the order of samples and all other random draws",
    "rounds": "number of communication rounds",
    "stages": "your own stages of the server's pipeline before aggregation: file.py:Class, in order",
}

KINDS: dict[str, Callable[[], list[Listed]]] = {
    "options": _options,
    "methods": _methods,
    "models": _models,
    "encoders": _encoders,
    "datasets": partial(_registered, "protofed.data", "datasets"),
    "partitions": partial(_registered, "protofed.data", "partitions"),
    "recipes": _recipes,
    "variants": _variants,
    "figures": _figures,
}


def entries(kind: str, names: Sequence[str] = ()) -> list[Listed]:
    """Return the entries of a list."""
    if kind not in KINDS:
        raise ConfigError(unknown_name("list", kind, KINDS))
    found = {entry.name: entry for entry in KINDS[kind]()}
    for name in names:
        if name not in found:
            raise ConfigError(unknown_name(f"name among the {kind}", name, found))
    return [found[name] for name in names or found]
