"""Names of runs: runs of one label are averaged, so they may differ in nothing but their seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

NOT_THE_METHODS = ("seed", "execution", "checkpoint", "compare")
NO_EFFECT = {"data.data_dir", "data.max_gb", "evaluation.metrics"}
"""Options in which runs may differ and still be repetitions of each other."""
_NAMED = 3  #: Most differing options of which a label names every value; of more, only what is unusual


def tell_apart(labels: Sequence[str], configurations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return ``labels`` extended by the options in which runs of equal label differ, other than their seed.

    If runs differ in more than three options, as in a folder of all sorts of runs, the value that most of them have
    goes without saying.

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
    # Recipes differ in many options: their names say enough, and runs of one recipe are compared with each other.
    keys = [(label, str(o.get("recipe"))) for label, o in zip(labels, options, strict=True)]
    recipes = Counter(label for label, _ in {*keys})
    told = {key: _unusual([o for k, o in zip(keys, options, strict=True) if k == key]) for key in {*keys}}
    return [
        ", ".join(
            [key[0], *([key[1]] if recipes[key[0]] > 1 else [])]
            + [f"{n}={own.get(n)}" for n, usual in told[key].items() if repr(own.get(n)) != usual]
        )
        for key, own in zip(keys, options, strict=True)
    ]


def _unusual(group: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    """Return the options that tell a group of runs apart → representation of the value that goes without saying."""
    first = group[0]
    differing = sorted({n for o in group for n in {**first, **o} if o.get(n) != first.get(n)})
    # What is an option of one partition and not of another goes without saying once the partitions are named.
    named = {n.removesuffix("name") for n in differing if n.endswith(".name")}
    implied = {n for n in differing if n.rpartition(".")[0] + "." in named and any(n not in o for o in group)}
    differing = [n for n in differing if n not in implied]
    if len(differing) <= _NAMED:
        return dict.fromkeys(differing)
    return {n: Counter(repr(o.get(n)) for o in group).most_common(1)[0][0] for n in differing}


def flat(tree: Mapping[str, Any], without: Sequence[str] = (), prefix: str = "") -> dict[str, Any]:
    """Return dotted name → value, without some of the names of the top level.

    Example:
        >>> flat({"seed": 0, "method": {"name": "gfpl", "lambda": 2.0}}, without=["seed"])
        {'method.name': 'gfpl', 'method.lambda': 2.0}
    """
    options: dict[str, Any] = {}
    for name, value in tree.items():
        if name not in without:
            options |= flat(value, (), f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return options
