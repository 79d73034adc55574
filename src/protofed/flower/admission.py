"""Which of the clients that described themselves can take part together, and which are left out and why.

Where two disagree, the majority of clients is right, and among equals those who came first: a newcomer cannot put
the others out by being different.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from protofed import claims, limits, methods, models
from protofed.errors import ConfigError
from protofed.experiments.config import Experiment
from protofed.experiments.workshop import (
    Architecture,
    Census,
    counts_needed,
    is_code,
    one_architecture,
    recipe_names,
)
from protofed.flower.census import elsewhere
from protofed.flower.messages import Description

T = TypeVar("T", bound=Hashable)


@dataclass
class Admission:
    """Clients that fit each other.

    Attributes:
        clients: In the order of the federation.
        classes: Names of all classes, in their order.
        left_out: Why each of the others cannot take part.
    """

    clients: list[Description]
    classes: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)

    def drop(self, unfit: Mapping[str, str]) -> None:
        """Leave clients out."""
        self.left_out |= unfit
        self.clients = [d for d in self.clients if d.name not in unfit]


def admit(experiment: Experiment, descriptions: Sequence[Description], chosen: Sequence[str] = ()) -> Admission:
    """Return the clients that can take part together.

    Args:
        experiment: What is run.
        descriptions: Of all clients, in the order in which they came.
        chosen: The classes in their order, if the operator of the server gives them.

    Raises:
        ConfigError: If the experiment itself does not suit the method, whoever the clients are.
    """
    found = Admission(list(descriptions))
    for check in (_settings, _counts, _shapes):
        found.drop(check(experiment, found.clients))
    order, unfit = class_order(found.clients, chosen, experiment.data.classes or limits.CLASSES)
    found.classes = order
    found.drop(unfit)
    found.drop(_models(experiment, found.clients, order))
    found.clients.sort(key=lambda d: (d.place, d.name))
    return found


def majority(values: Iterable[T], preferred: T | None = None) -> T:
    """Return the most frequent value; of several ``preferred``, or else the first."""
    votes = Counter(values)
    most = max(votes.values())
    first = [value for value, n in votes.items() if n == most]
    return preferred if preferred is not None and preferred in first else first[0]


def class_order(
    descriptions: Sequence[Description], chosen: Sequence[str] = (), most: int = limits.CLASSES
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the names of all classes in their order, and the clients that do not fit it, with reasons.

    Args:
        descriptions: Of all clients, in the order in which they came.
        chosen: The order, if the operator of the server gives it.
        most: How many classes there may be.

    Returns:
        ``chosen``, or the names that all have in common, or for numbered classes the longest list, or for named
        ones the sorted union, as a federation folder with the same clients would have it.
    """
    unfit: dict[str, str] = {}
    holding = [d for d in descriptions if any(d.train) or any(d.test)]
    named = majority([d.named for d in holding]) if holding else False
    how = {True: "names", False: "numbers"}
    for d in holding:
        if d.named != named:
            unfit[d.name] = f"{how[d.named]} its classes, but the federation {how[named]} them: use one kind"
    rest = [d for d in descriptions if d.name not in unfit]
    if chosen:
        order = tuple(chosen)
        unfit |= _beyond(rest, order)
    elif named:
        order, more = _union(rest, most)
        unfit |= more
    else:
        order, more = _longest(rest, most)
        unfit |= more
    return order, unfit


def _beyond(descriptions: Sequence[Description], order: tuple[str, ...]) -> dict[str, str]:
    """Refuse clients with classes that the operator does not name."""
    known, unfit = set(order), {}
    for d in descriptions:
        missing = next((name for name in d.classes if name not in known), None) if d.named else None
        if missing is not None:
            unfit[d.name] = f"has class {claims.clean(missing, 80)!r}, which is not among those of the federation"
        elif not d.named and len(d.classes) > len(order):
            unfit[d.name] = f"has {len(d.classes)} classes, the federation {len(order)}"
    return unfit


def _union(descriptions: Sequence[Description], most: int) -> tuple[tuple[str, ...], dict[str, str]]:
    """Take the classes that anyone names; beyond ``most``, those that most clients name."""
    if len({d.classes for d in descriptions}) == 1 and len(descriptions[0].classes) <= most:
        return descriptions[0].classes, {}
    votes = Counter(name for d in descriptions for name in d.classes)
    known = {name for name, _ in votes.most_common(most)}
    unfit = {
        d.name: f"brings the classes to more than {most}" for d in descriptions if not known.issuperset(d.classes)
    }
    kept = set().union(*(d.classes for d in descriptions if d.name not in unfit))
    return tuple(sorted(kept)), unfit


def _longest(descriptions: Sequence[Description], most: int) -> tuple[tuple[str, ...], dict[str, str]]:
    """Take the longest list of numbered classes; where names of one number differ, that of most clients."""
    unfit = {d.name: f"has {len(d.classes)} classes, at most {most}" for d in descriptions if len(d.classes) > most}
    order: list[str] = []
    rest = [d for d in descriptions if d.name not in unfit]
    while rest := [d for d in rest if len(d.classes) > len(order)]:
        number = len(order)
        name = majority(d.classes[number] for d in rest)
        for d in rest:
            if d.classes[number] != name:
                own = claims.clean(d.classes[number], 80)
                unfit[d.name] = f"class {number} is {own!r}, for most others {claims.clean(name, 80)!r}"
        rest = [d for d in rest if d.name not in unfit]
        order.append(name)
    return tuple(order), unfit


def _settings(experiment: Experiment, descriptions: Sequence[Description]) -> dict[str, str]:
    """Refuse models that there are not, and plans that the optimiser does not take."""
    unfit: dict[str, str] = {}
    for d in descriptions:
        try:
            own = d.settings.get("model", claims.PRIVATE)
            if is_code(own) and not recipe_names(experiment, own):
                raise ConfigError(f"model {own!r}: code is taken from the recipe alone, not from a client")
            if own != claims.PRIVATE:
                models.assign(own, 1)
            experiment.training.plan(d.settings)
        except ConfigError as error:
            unfit[d.name] = claims.clean(error)
    return unfit


def _counts(experiment: Experiment, descriptions: Sequence[Description]) -> dict[str, str]:
    """Refuse clients that withhold numbers which are needed."""
    why = counts_needed(experiment)
    return {d.name: f"counts={d.counts}, but {why}" for d in descriptions if d.counts != "exact"} if why else {}


def _shapes(experiment: Experiment, descriptions: Sequence[Description]) -> dict[str, str]:
    """Refuse clients whose samples have another shape than most."""
    if not descriptions:
        return {}
    usual = majority(d.input_shape for d in descriptions)
    return {
        d.name: f"samples are {d.input_shape}, but those of most clients are {usual}: all must share one shape"
        for d in descriptions
        if d.input_shape != usual
    }


def _models(
    experiment: Experiment, descriptions: Sequence[Description], classes: tuple[str, ...]
) -> dict[str, str]:
    """Refuse clients that differ in what the method needs all to share."""
    kind, same = methods.get(experiment.method), one_architecture(experiment)
    if not descriptions:
        return {}
    # The recipe's own models have to suit the method: that is no client's fault.
    plain = [replace(d, settings={}) for d in descriptions if "model" not in d.settings]
    assigned = Census.of(experiment, elsewhere(plain, classes)).architectures if plain else ()
    unfit: dict[str, str] = {}
    if kind.same_feature_dim or same:
        why = "shares weights" if same else "exchanges features"
        unfit |= _differing(
            descriptions, lambda d: d.settings.get("d", experiment.model.d), experiment.model.d, why
        )
    if same and not experiment.model.shared:
        private = [d.name for d in descriptions if d.settings.get("model") == claims.PRIVATE]
        why = "shares weights and needs one architecture: set model.shared"
        unfit |= dict.fromkeys(private, f"has a model of its own, but the method {why}")
        rest = [d for d in descriptions if d.name not in unfit]
        usual = str(assigned[0]) if assigned else None
        unfit |= _differing(rest, lambda d: _own(d) or usual, usual, why)
    return unfit


def _own(description: Description) -> str:
    """Return the architecture that a client chooses for itself; empty if it does not."""
    name = description.settings.get("model")
    return str(Architecture(*models.assign(name, 1)[0], 0)) if name else ""


def _differing(
    descriptions: Sequence[Description], of: Callable[[Description], Hashable], preferred: Hashable, why: str
) -> dict[str, str]:
    if not descriptions:
        return {}
    usual = majority((of(d) for d in descriptions), preferred)
    return {
        d.name: f"has {_said(of(d))}, most clients have {_said(usual)}, but the method {why}"
        for d in descriptions
        if of(d) != usual
    }


def _said(value: Hashable) -> str:
    return f"d={value}" if isinstance(value, int) else str(value)
