"""Remarks on runs for careful readers: the test samples, and the differences between methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from protofed.analysis.one_class import one_class
from protofed.options import option_fields
from protofed.runs.labels import NOT_THE_METHODS, flat
from protofed.runs.run import Run, by_label
from protofed.runs.trouble import first_trouble, ruin
from protofed.text import number

NAMES = {"method.lambda": "λ", "method.gamma": "γ", "training.lr": "learning rate", "training.epochs": "epochs"}
"""Display names of hyperparameters; of the methods' own, only these are compared."""
SHOWN = 8  #: Most options, or architectures of one method, that a line lists
LONGEST = 60  #: Most characters of a value that a line shows


class Remark(NamedTuple):
    """A remark with a title."""

    title: str
    text: str


def remarks(runs: Sequence[Run]) -> list[Remark]:
    """Return the remarks on some runs.

    Methods are compared at the same values along the axes of their comparison.
    """
    refused = sum(run.outcome.refused for run in runs)
    found = [
        *(Remark("numbers that are not finite", text) for text in troubles(runs)[1]),
        Remark(
            "uploads refused", f"{number(refused)} uploads were refused; the report names them." if refused else ""
        ),
        Remark("sites with one class", one_class(runs)),
        Remark("own classes only", own_classes(runs)),
        Remark("hyperparameters differ", hyperparameters(runs)),
        Remark("models differ", models(runs)),
    ]
    return [remark for remark in found if remark.text]


def troubles(runs: Sequence[Run]) -> tuple[list[str], list[str]]:
    """Return why runs are worthless, and in which others numbers were not finite."""
    ruined, others = [], []
    for run in runs:
        where = f"{run.label}, seed {run.seed}: " if len(runs) > 1 else ""
        if worst := ruin(run.rounds):
            ruined.append(where + worst)
        elif first := first_trouble(run.rounds):
            others.append(where + first)
    return ruined, others


def own_classes(runs: Sequence[Run]) -> str:
    """Return why training alone can be ahead, and where to look then; "" if no method sends nothing."""
    if all(run.outcome.communication.sent for run in runs if run.rounds) or len(by_label(runs)) < 2:
        return ""
    measured = any(outcome.unseen for run in runs for outcome in run.outcome.accuracy.values())
    where = (
        "the figures of all classes (union) and of unseen classes have it"
        if measured
        else "it was not measured here (evaluation.on=union does)"
    )
    return (
        "Clients are tested on samples of their own, often few, classes, so a method that sends nothing can be "
        "ahead: its clients need not distinguish these classes from others. The benefit of communicating shows on "
        f"classes that a client lacks; {where}. Both sides' best methods are chosen on the same test samples."
    )


def hyperparameters(runs: Sequence[Run]) -> str:
    """Return in one line in which hyperparameters methods differ; "" if in none."""
    options = {id(run): flat(run.config) for run in runs}
    found = {name: _groups(runs, partial(_value, name, options)) for name in _names(runs)}
    parts = [
        f"{NAMES.get(name, name)} ({'; '.join(f'{v} for {_list_items(names)}' for v, names in groups.items())})"
        for name, groups in found.items()
        if len(groups) > 1
    ]
    return f"Methods differ in {_list_items(parts)}." if parts else ""


def models(runs: Sequence[Run]) -> str:
    """Return in one line which models each method trains; "" if all train the same."""
    groups = _groups(runs, model_names)
    parts = [f"{_list_items(names)}: {value}" for value, names in groups.items()]
    return f"Models differ: {'; '.join(parts)}." if len(parts) > 1 else ""


def model_names(run: Run) -> str:
    """Return the architectures of a run's clients, each with its number of parameters, and their fixed features."""
    kinds = dict.fromkeys((c.architecture, c.parameters) for c in run.clients)
    encoder = run.config.get("encoder", {}).get("name") or "none"
    features = "" if encoder == "none" else f" on fixed features (encoder.name={encoder})"
    return _list_items([f"{name} with {number(size)} parameters" for name, size in kinds]) + features


def _names(runs: Sequence[Run]) -> list[str]:
    """Return the dotted names of the hyperparameters to compare."""
    models = ("model.name", "model.shared", "model.members", "model.options.")
    options = (flat(run.config, (*NOT_THE_METHODS, "recipe", "method")) for run in runs)
    shared = [name for table in options for name in table if not name.startswith(models)]
    return list(dict.fromkeys([*NAMES, *shared]))


def _groups(runs: Sequence[Run], of: Callable[[Run], str]) -> dict[str, list[str]]:
    """Return methods by value, where most methods differ in it; the value "" is left out."""
    found: dict[tuple[str, ...], dict[str, dict[str, None]]] = {}
    for run in runs:
        if value := of(run):
            found.setdefault(run.values, {}).setdefault(value, {})[run.method] = None
    groups = ({value: list(names) for value, names in group.items()} for group in found.values())
    return max((group for group in groups if len({*map(tuple, group.values())}) > 1), key=len, default={})


def _value(name: str, options: Mapping[int, Mapping[str, Any]], run: Run) -> str:
    """Return the value of an option, or that of the method on which the run's is based; "" if neither has it."""
    from protofed.methods import methods

    section, _, option = name.partition(".")
    chosen = options[id(run)]
    value = chosen.get(name, "" if section == "method" else "none")
    if value == "" and (base := str(chosen.get("method.base", ""))) in methods():
        field = option_fields(methods().get(base).Options).get(option)
        value = "" if field is None else field.default
    return f"{value:g}" if isinstance(value, float) else str(value)[:LONGEST]


def _list_items(items: Sequence[str]) -> str:
    """Return items as a list in words, shortened if it is long."""
    shown = [*items[:SHOWN], f"{len(items) - SHOWN} more"] if len(items) > SHOWN else items
    return " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
