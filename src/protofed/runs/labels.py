"""Names of runs: runs of one label are averaged, so they may differ in nothing but their seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NOT_THE_METHODS = ("seed", "execution", "checkpoint", "compare")
NO_EFFECT = {"data.data_dir", "data.max_gb", "evaluation.metrics"}
"""Options in which runs may differ and still be repetitions of each other."""


def tell_apart(labels: Sequence[str], configurations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return ``labels`` extended by the options in which runs of equal label differ, other than their seed.

    Args:
        labels: One per run.
        configurations: Resolved, one per run.

    Example:
        >>> tell_apart(["a", "a"], [{"seed": 0, "method": {"lambda": 1}}, {"seed": 1, "method": {"lambda": 5}}])
        ['a, method.lambda=1', 'a, method.lambda=5']
        >>> tell_apart(["a", "a"], [{"partition": {"name": "iid"}}, {"partition": {"name": "skewed", "alpha": 1}}])
        ['a, partition.name=iid', 'a, partition.name=skewed']
    """
    options = [
        {name: value for name, value in flat(c, NOT_THE_METHODS).items() if name not in NO_EFFECT}
        for c in configurations
    ]
    return [
        _extended(label, o, [p for n, p in zip(labels, options, strict=True) if n == label])
        for label, o in zip(labels, options, strict=True)
    ]


def _extended(label: str, own: Mapping[str, Any], group: Sequence[Mapping[str, Any]]) -> str:
    # Recipes differ in many options: their names say enough, and runs of one recipe are compared with each other.
    recipes = len({str(o.get("recipe")) for o in group}) > 1
    group = [o for o in group if o.get("recipe") == own.get("recipe")]
    first = group[0]
    differing = sorted({n for o in group for n in {**first, **o} if o.get(n) != first.get(n)})
    # What is an option of one partition and not of another goes without saying once the partitions are named.
    named = {n.removesuffix("name") for n in differing if n.endswith(".name")}
    implied = {n for n in differing if n.rpartition(".")[0] + "." in named and any(n not in o for o in group)}
    differing = [n for n in differing if n not in implied]
    return ", ".join(
        [label, *([str(own.get("recipe"))] if recipes else []), *(f"{n}={own.get(n)}" for n in differing)]
    )


def flat(tree: Mapping[str, Any], without: Sequence[str] = (), prefix: str = "") -> dict[str, Any]:
    """Return dotted name → value, without some of the names of the top level.

    Args:
        tree: Tables within tables.
        without: Names of the top level that are left out.
        prefix: What names begin with.

    Example:
        >>> flat({"seed": 0, "method": {"name": "gfpl", "lambda": 2.0}}, without=["seed"])
        {'method.name': 'gfpl', 'method.lambda': 2.0}
    """
    options: dict[str, Any] = {}
    for name, value in tree.items():
        if name not in without:
            options |= flat(value, (), f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return options
