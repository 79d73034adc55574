"""Selection of the clients that can take part together, with a reason for each of the others.

Disagreements are settled by the majority of clients, and ties by the order of arrival, so that a newcomer cannot
exclude the others by being different.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from protofed import models
from protofed.config.architectures import (
    counts_needed,
    fit_to_columns,
    is_code,
    one_architecture,
    own_width,
    recipe_names,
    traits_of,
    why_one,
)
from protofed.data.comparing import Mismatch, Site, compare, describe, majority
from protofed.data.tables import Table
from protofed.engine import Architecture, Experiment, FederationSummary
from protofed.errors import ConfigError
from protofed.untrusted import claims, limits
from protofed_flower.messages import Description
from protofed_flower.summary import describe_federation


@dataclass
class Admission:
    """Clients that are compatible with each other, and the reason for each other client that was left out."""

    clients: list[Description]
    classes: tuple[str, ...] = ()
    left_out: dict[str, str] = field(default_factory=dict)

    def drop(self, unfit: Mapping[str, str]) -> None:
        """Leave clients out, given the reason for each by name."""
        self.left_out |= unfit
        self.clients = [d for d in self.clients if d.name not in unfit]


def admit(experiment: Experiment, descriptions: Sequence[Description], chosen: Sequence[str] = ()) -> Admission:
    """Return the compatible clients in order of arrival; ``chosen`` are the operator's class names, if any."""
    admission = Admission(list(descriptions))
    for check in (_settings, _counts, partial(_sites, chosen=chosen), _readings, _shapes, _encoders):
        admission.drop(check(experiment, admission.clients))
    order, unfit = class_order(admission.clients, chosen, experiment.data.classes or limits.CLASSES)
    admission.classes = order
    admission.drop(unfit)
    admission.drop(_labels(admission.clients))
    admission.drop(_models(experiment, admission.clients, order))
    admission.clients.sort(key=lambda d: (d.place, d.name))
    return admission


def class_order(
    descriptions: Sequence[Description], chosen: Sequence[str] = (), most: int = limits.CLASSES
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Determine the order of the classes and the clients that do not fit it.

    Args:
        descriptions: In order of arrival.
        chosen: Class names in order, if the operator of the server sets them.

    Returns:
        The class names in order, and the reason for each client that does not fit. The names are ``chosen`` if
        given; the clients' common list if they all have the same; otherwise the longest list of numbered classes,
        or the sorted union of named ones, as for a federation folder with the same clients.
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
        return tuple(chosen), unfit | _beyond(rest, tuple(chosen))
    order, excluded = (_union if named else _longest)(rest, most)
    return order, unfit | excluded


def _beyond(descriptions: Sequence[Description], order: tuple[str, ...]) -> dict[str, str]:
    """Refuse clients with classes that the operator did not list."""
    known, unfit = set(order), {}
    for d in descriptions:
        missing = next((name for name in d.classes if name not in known), None) if d.named else None
        if missing is not None:
            unfit[d.name] = f"has class {claims.clean(missing, 80)!r}, which is not among those of the federation"
        elif not d.named and len(d.classes) > len(order):
            unfit[d.name] = f"has {len(d.classes)} classes, the federation {len(order)}"
    return unfit


def _union(descriptions: Sequence[Description], most: int) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the union of the named classes, or the ``most`` most frequent ones, and the clients left out."""
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
    """Return the longest list of numbered classes, each with its most frequent name, and the clients left out."""
    unfit = {d.name: f"has {len(d.classes)} classes, at most {most}" for d in descriptions if len(d.classes) > most}
    order: list[str] = []
    rest = [d for d in descriptions if d.name not in unfit]
    while rest := [d for d in rest if len(d.classes) > len(order)]:
        number = len(order)
        name = majority(d.classes[number] for d in rest)
        for d in rest:
            if d.classes[number] != name:
                differing = claims.clean(d.classes[number], 80)
                unfit[d.name] = f"class {number} is {differing!r}, for most others {claims.clean(name, 80)!r}"
        rest = [d for d in rest if d.name not in unfit]
        order.append(name)
    return tuple(order), unfit


def _settings(experiment: Experiment, descriptions: Sequence[Description]) -> dict[str, str]:
    """Refuse clients with unknown models or with training options that the optimiser rejects."""
    unfit: dict[str, str] = {}
    for d in descriptions:
        try:
            model = d.settings.get("model", claims.PRIVATE)
            if is_code(model) and not recipe_names(experiment, model):
                raise ConfigError(f"model {model!r}: only the recipe may name code, not a client")
            if model != claims.PRIVATE:
                models.members(model)
            experiment.training.plan(d.settings)
        except ConfigError as error:
            unfit[d.name] = claims.clean(error)
    return unfit


def _counts(experiment: Experiment, descriptions: Sequence[Description]) -> dict[str, str]:
    """Refuse clients that withhold numbers of samples that are needed."""
    why, told = counts_needed(experiment), ("exact", claims.EVEN)
    return {d.name: f"counts={d.counts}, but {why}" for d in descriptions if d.counts not in told} if why else {}


def _shapes(experiment: Experiment, descriptions: Sequence[Description]) -> dict[str, str]:
    """Refuse clients whose samples differ in shape from the majority's."""
    if not descriptions:
        return {}
    colour = {d.input_shape for d in descriptions if len(d.input_shape) == 3 and d.input_shape[0] == 3}

    def shape(d: Description) -> tuple[int, ...]:
        """Return the shape of a client's samples, as if grey images were in the colour of others of their size."""
        coloured = (3, *d.input_shape[1:])
        return coloured if d.input_shape[0] == 1 and coloured in colour else d.input_shape

    usual = majority(shape(d) for d in descriptions)
    return {
        d.name: f"samples are {d.input_shape}, but those of most clients are {usual}: all must share one shape"
        for d in descriptions
        if shape(d) != usual
    }


def _readings(experiment: Experiment, descriptions: Sequence[Description]) -> dict[str, str]:
    """Refuse clients that make inputs of their columns otherwise than the recipe says."""
    own = experiment.data.reading
    why = (
        "its own file reads tables otherwise than this recipe (data.missing, data.standardise, data.ranges, "
        "data.text_as, data.text_length, data.tokenizer): give both the same"
    )
    return {d.name: why for d in descriptions if d.reading and d.reading != own}


def _encoders(experiment: Experiment, descriptions: Sequence[Description]) -> dict[str, str]:
    """Refuse clients whose encoder, or its weights, differ from the majority's."""
    usual = majority(d.encoder for d in descriptions) if descriptions else ""
    name = experiment.encoder.name
    return {
        d.name: f"its encoder is another one, or has other weights, than most clients' (encoder.name={name})"
        for d in descriptions
        if d.encoder != usual
    }


def _sites(
    experiment: Experiment, descriptions: Sequence[Description], chosen: Sequence[str] = ()
) -> dict[str, str]:
    """Refuse clients whose columns or names differ from those of most others though they probably mean the same."""
    sites = [
        Site(
            d.name,
            d.classes if d.named else (),
            None if d.table is None else tuple(column.raw for column in d.table),
        )
        for d in descriptions
    ]
    unfit: dict[str, list[Mismatch]] = {}
    for finding in compare(sites, experiment.data, chosen):
        unfit.setdefault(finding.site, []).append(finding)
    return {
        name: claims.clean(describe(findings, named=False), 2 * limits.REASON) for name, findings in unfit.items()
    }


def _labels(descriptions: Sequence[Description]) -> dict[str, str]:
    """Refuse all clients if their tables have one class in all: another column is the label."""
    held = [
        (name if d.named else number)
        for d in descriptions
        for number, (name, *n) in enumerate(zip(d.classes, d.train, d.test, strict=True))
        if any(n)
    ]
    if len(set(held)) != 1 or not any(d.table is not None for d in descriptions):
        return {}
    value = claims.clean(str(held[0]), 80)
    why = f"the label column is constant (all samples of all clients are {value!r}): set data.label_column"
    return {d.name: why for d in descriptions}


def _models(
    experiment: Experiment, descriptions: Sequence[Description], classes: tuple[str, ...]
) -> dict[str, str]:
    """Refuse clients that differ in a property that the method requires all to share."""
    traits, same = traits_of(experiment), one_architecture(experiment)
    if not descriptions:
        return {}
    # If the recipe's own models do not suit the method, that is an error of the recipe, not of a client.
    plain = [replace(d, settings={}) for d in descriptions if "model" not in d.settings]
    assigned: Sequence[Architecture] = ()
    table = None
    if plain:
        federated = describe_federation(plain, classes, experiment.data, experiment.encoder)
        assigned, table = FederationSummary.of(experiment, federated).architectures, federated.table
    unfit: dict[str, str] = {}
    if traits.alike != "nothing":
        why = why_one(experiment).partition(" and ")[0] if same else "exchanges features"
        usual_name = assigned[0].name if assigned else ""

        def width(d: Description) -> int:
            name = str(d.settings.get("model", usual_name))
            return int(d.settings.get("d", own_width(experiment, name, d.input_shape)))

        unfit |= _differing(descriptions, width, experiment.model.d, why)
    if same and not experiment.model.shared:
        private = [d.name for d in descriptions if d.settings.get("model") == claims.PRIVATE]
        why = why_one(experiment)
        unfit |= dict.fromkeys(private, f"has its own model, but the method {why}")
        rest = [d for d in descriptions if d.name not in unfit]
        usual = str(assigned[0]) if assigned else None
        unfit |= _differing(rest, lambda d: _chosen_architecture(experiment, d, table) or usual, usual, why)
    return unfit


def _chosen_architecture(experiment: Experiment, description: Description, table: Table | None) -> str:
    """Return the architecture that a client chooses for itself, or "" if it chooses none."""
    name = description.settings.get("model")
    return str(fit_to_columns(experiment, Architecture(*models.members(name)[0], 0), table)) if name else ""


def _differing(
    descriptions: Sequence[Description], of: Callable[[Description], Hashable], preferred: Hashable, why: str
) -> dict[str, str]:
    if not descriptions:
        return {}
    usual = majority((of(d) for d in descriptions), preferred)
    return {
        d.name: f"has {_describe_value(of(d))}, most clients have {_describe_value(usual)}, but the method {why}"
        for d in descriptions
        if of(d) != usual
    }


def _describe_value(value: Hashable) -> str:
    return f"d={value}" if isinstance(value, int) else str(value)
