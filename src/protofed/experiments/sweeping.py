"""Sweeps: every combination of some values of options; finished runs are never repeated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from protofed.config.schema import Tree, apply_overrides, comparison, parse_overrides
from protofed.errors import ConfigError
from protofed.experiments.comparing import Plan
from protofed.text import number

MANY = 1000  #: A sweep of more runs than this needs a budget of time
MOST = 1_000_000  #: Most runs of a sweep


def grid(items: Iterable[str]) -> tuple[Tree, Tree]:
    """Return the axes and the plain overrides among ``NAME=VALUE[,VALUE…]``.

    Commas inside brackets or quotes do not separate values.

    Returns:
        Overrides by value by axis, as in ``compare.axes``; and values by dotted name.

    Example:
        >>> grid(["method.s=50,150", "rounds=4"])
        ({'method.s': {'50': {'method.s': 50}, '150': {'method.s': 150}}}, {'rounds': 4})
    """
    axes: Tree = {}
    plain: Tree = {}
    for item in items:
        name, separator, text = item.partition("=")
        values = [text] if name.startswith("compare.") else _split(text)  # which are lists themselves
        if name in ("method.name", "seed") and len(values) > 1:
            raise ConfigError(f"{item}: use {'--methods' if name == 'method.name' else '--seeds'} {text}")
        given = [parse_overrides([f"{name}{separator}{value}"]) for value in values]
        if len(values) < 2:
            plain |= given[0]
        elif name in axes or len(set(values)) < len(values):
            raise ConfigError(f"{item}: names an option or a value twice")
        else:
            axes[name.strip()] = dict(zip(values, given, strict=True))
    return axes, plain


def _split(text: str) -> list[str]:
    """Return the values between commas that are in no brackets or quotes."""
    values, depth, quote = [""], 0, ""
    for c in text:
        if quote or c in "\"'":
            quote = ("" if c == quote else quote) if quote else c
        else:
            depth += (c in "[{") - (c in "]}")
        if c == "," and not depth and not quote:
            values.append("")
        else:
            values[-1] += c
    return [value.strip() for value in values]


def sweep_plan(tree: Tree, axes: Mapping[str, Tree]) -> Plan:
    """Return the runs of a sweep."""
    compare, options = tree.get("compare", {}), comparison(tree)
    runs = max(1, len(options.seeds)) * max(1, len(options.methods))
    for values in axes.values():
        runs *= len(values)
    if runs > MOST:
        raise ConfigError(f"a sweep of {number(runs)} runs is more than {number(MOST)}")
    # A dotted name of an axis is one name here, not a path.
    section = {**compare, "axes": dict(axes)} if axes else {k: v for k, v in compare.items() if k != "axes"}
    return Plan.of(apply_overrides({**tree, "compare": section}, {}), keyed=True)
