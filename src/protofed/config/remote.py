"""What a server may set at a node: the plan of a run, and the one check of a plan that arrives.

Every option declares who may set it (:mod:`protofed.options`), and what is not declared is closed. A server sends a
plan: the values of the options that it may set, which are numbers, flags and words. A node walks whatever arrives
once, before any name is looked up: a text is a word, which names neither a path nor code, or is in its own list.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import Field
from pathlib import PurePath
from typing import Any

from protofed import methods
from protofed.config.schema import SCALARS, SECTIONS, Experiment, Tree, resolve
from protofed.data import DataOptions
from protofed.errors import ConfigError, RefusalError, refusal
from protofed.models import architectures
from protofed.options import Options, option_fields, plain
from protofed.untrusted import claims, limits

KINDS = ("methods", "models", "encoders", "codecs", "optimizers", "weights", "stages", "clients", "")
"""Kinds of names in a plan."""
Permits = Callable[[str, str], bool]  #: Whether a node's own list of a kind holds a name
LONGEST = 1024  #: Most values of a list in a plan
_WORD = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_. -]{0,126}[A-Za-z0-9_])?", re.ASCII)
_OPTION = re.compile(r"[A-Za-z0-9_.-]{1,128}", re.ASCII)


def plan_of(experiment: Experiment) -> Tree:
    """Return an experiment's plan: the options that a server may set, and files by name only."""
    tree = experiment.to_tree()
    plan: Tree = {name: list(tree[name]) if name == "stages" else tree[name] for name in SCALARS}
    plan["method"] = tree["method"]
    for section, kind in _sections().items():
        fields = option_fields(kind)
        plan[section] = {n: v for n, v in tree[section].items() if settable(fields[n])}
    sent: Tree = _with_names(plan)
    return sent


def settable(field: Field[Any]) -> bool:
    """Return whether a server may set an option at a node."""
    return field.metadata.get("setter") == "server"


def check_plan(plan: Mapping[str, Any], permits: Permits) -> None:
    """Reject a plan that sets more than a server may; nothing is looked up or imported.

    Raises:
        RefusalError: With the option's name and without its value.
    """
    sections = _sections()
    for name, value in plan.items():
        if name == "method":
            _check_method(_table(value, name), permits)
        elif name in sections:
            _check_section(_table(value, name), option_fields(sections[name]), name, permits)
        elif name == "stages":
            _check_value(value, name, permits, "stages", limits.INPUT_SIDE)
        elif name in SCALARS:
            _check_value(value, name, permits, "", limits.SEED)
        else:
            raise _refuse_option(_name(name))


def read_plan(plan: Mapping[str, Any], data: DataOptions, permits: Permits) -> Experiment:
    """Return the experiment of a plan that :func:`check_plan` takes, with samples read as ``data`` say."""
    check_plan(plan, permits)
    own = plain(data)
    if not own["classes"]:
        own["classes"] = plan.get("data", {}).get("classes", 0)
    try:
        return resolve({**plan, "data": own})
    except ConfigError as error:  # the sentence may hold values of the node's own file
        raise refusal("plan", text=str(error)) from None


def list_names(experiment: Experiment) -> Iterator[tuple[str, str, str]]:
    """Yield option, kind and name of all that an experiment names, except clients' architectures."""
    yield "method.name", "methods", experiment.method
    records = {"method": experiment.method_options, **{name: getattr(experiment, name) for name in _sections()}}
    for section, record in records.items():
        for name, field in option_fields(type(record)).items():
            value, kind, option = getattr(record, field.name), field.metadata.get("of"), f"{section}.{name}"
            if kind and isinstance(value, str) and value and option != "model.name":
                yield option, kind, value


def code_of(tree: Mapping[str, Any]) -> list[str]:
    """Return the names of code anywhere in a recipe, except in ``data``, whose options name none."""
    data = tree.get("data")
    trusts = ["data.trust_code"] if isinstance(data, Mapping) and data.get("trust_code") else []
    rest = {name: value for name, value in tree.items() if name != "data"}
    return [*filter(claims.is_code, _texts(rest)), *trusts]


def _sections() -> dict[str, type[Options]]:
    return {n: kind for n, kind in SECTIONS.items() if any(map(settable, option_fields(kind).values()))}


def _check_method(table: Mapping[str, Any], permits: Permits) -> None:
    name = table.get("name")
    if not isinstance(name, str) or not (name in methods.methods() or permits("methods", name)):
        raise _refuse_name("method.name")
    fields = option_fields(methods.get(name).Options)
    _check_section({n: v for n, v in table.items() if n != "name"}, fields, "method", permits)


def _check_section(
    table: Mapping[str, Any], fields: Mapping[str, Field[Any]], where: str, permits: Permits
) -> None:
    for name, value in table.items():
        option = _name(f"{where}.{name}")
        if name not in fields or not settable(fields[name]):
            raise _refuse_option(option)
        kind, bounds = fields[name].metadata.get("of", ""), fields[name].metadata["range"]
        _check_value(value, option, permits, kind, bounds.most or limits.OPTION)


def _check_value(value: Any, option: str, permits: Permits, kind: str, most: float, depth: int = 0) -> None:
    """Reject values that no option of a plan can have."""
    if isinstance(value, str):
        if value and not _WORD.fullmatch(value) and not permits(kind, value):
            raise _refuse_name(option)
    elif isinstance(value, Mapping) and depth < 3:
        _check_table(value, option, permits, kind, depth)
    elif isinstance(value, (list, tuple)) and len(value) <= LONGEST and depth < 3:
        for item in value:
            _check_value(item, option, permits, kind, most, depth + 1)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _refuse_option(option)
    elif not (value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) <= most)):
        raise _refuse_option(option)


def _check_table(value: Mapping[str, Any], option: str, permits: Permits, kind: str, depth: int) -> None:
    """Check the options of a component; an option that any component of its kind closes is closed."""
    every = [known for _, known in (methods.methods() if kind == "methods" else architectures).items()]
    for name, own in value.items():
        where = _name(f"{option}.{name}")
        if not _WORD.fullmatch(name) and not permits(kind, name):
            raise _refuse_option(where)
        fields = [field for known in every if (field := option_fields(known.Options).get(name))]
        if any(not settable(field) for field in fields):
            raise _refuse_option(where)
        kinds = {field.metadata.get("of", "") for field in fields} or {kind if name == "name" else ""}
        most = max(
            (field.metadata["range"].most or limits.INPUT_SIDE for field in fields), default=limits.INPUT_SIDE
        )
        inner = kind if isinstance(own, Mapping) else min(kinds)
        _check_value(own, where, permits, inner, most, depth + 1)


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _refuse_option(where)
    return value


def _refuse_option(option: str) -> RefusalError:
    return refusal("closed", option, f"{option} is not for a server to set: only the node's own file may")


def _refuse_name(option: str) -> RefusalError:
    told = f"{option} names what is neither built in nor listed in [allow] of node.toml: code, a path, or a method"
    return refusal("not allowed", option, told)


def _name(option: str) -> str:
    """Return an option's name in a form that is safe to print."""
    return option if _OPTION.fullmatch(option) else "a name that no option has"


def _with_names(value: Any, name: str = "") -> Any:
    """Return a plan with files called by their names alone: a node has them in a folder of its own."""
    if isinstance(value, Mapping):
        return {n: _with_names(v, n) for n, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_names(item) for item in value]
    return PurePath(value).name if name == "weights" and isinstance(value, str) else value


def _texts(value: object) -> Iterator[str]:
    """Yield all texts in a recipe, names of options included."""
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, str):
        yield value
    elif isinstance(value, Sequence):
        for item in value:
            yield from _texts(item)
