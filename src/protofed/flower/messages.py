"""What the server asks of nodes and what they answer, as plain values: text, numbers and bytes, never pickles.

What comes from the other side is checked here for type and range, before anything is made of it; what a payload may
contain is the wire's business.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from protofed import claims, limits
from protofed.errors import PayloadError
from protofed.training import Evaluated, Trained

Values = dict[str, Any]
"""What Flower's ``ConfigRecord`` holds: text, numbers, bytes."""
"""Characters of a table of losses or scores."""
SHARES = 100
"""A client that withholds its counts tells its scores as so many correct of a hundred."""
GENERATION = re.compile(r"[0-9]{6,9}-[0-9a-f]{16}")
"""Names of generations, as :class:`~protofed.flower.state.ClientFolder` gives them."""


@dataclass(frozen=True)
class Description:
    """What a node tells of one of its clients before the first round.

    Attributes:
        name: The client's name, unique in the federation.
        classes: Names of the classes it knows.
        named: Whether its data name their classes, or number them.
        train: Training samples of each class, as ``counts`` says.
        test: Test samples of each class.
        validation: Validation samples.
        input_shape: Shape of one sample.
        settings: What it decides for itself (its ``client.toml``), a model of its own without its name.
        place: Where it comes in the order of clients; those of one place are in the order of their names.
        counts: Whether numbers of samples are ``exact``, ``coarse`` (the power of two above) or ``none``: 1 where
            there are any.
    """

    name: str
    classes: tuple[str, ...]
    named: bool
    train: tuple[int, ...]
    test: tuple[int, ...]
    validation: int
    input_shape: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    place: int = 0
    counts: str = "exact"


@dataclass(frozen=True)
class Scored:
    """How many samples a client was trained and scored on, as far as the server knows.

    Attributes:
        train: Training samples, by which losses are averaged.
        test: Test samples.
        validation: Validation samples.
        shares: Whether scores come as correct of :data:`SHARES` instead of numbers of samples.
    """

    train: int
    test: int
    validation: int
    shares: bool = False


@dataclass(frozen=True)
class Job:
    """One visit that the server asks for.

    Attributes:
        run: Identifies the run, also across a restart of the server.
        client: Whose visit.
        round: Counted from 1.
        config: The experiment's configuration, as JSON.
        census: What is known of all clients (see :class:`~protofed.flower.census.Shared`), as JSON.
        message: The encoded broadcast, or None.
        deliver: Whether an evaluation delivers the broadcast.
        order: Grows with every request of a run, across restarts of the server too.
        after: The client's generation from which, or from what came of it, the visit must start; "" for the client
            as it was before the run.
        saved: The generation to which the server goes back if it is stopped now.
        state: The client as :func:`~protofed.training.client.pack` returns it, if it travels with its visits; None
            if its node keeps it.
    """

    run: str
    client: str
    round: int
    config: str
    census: str
    message: bytes | None = None
    deliver: bool = True
    order: int = 0
    after: str = ""
    saved: str = ""
    state: bytes | None = None

    def to_values(self) -> Values:
        """Return the job as Flower carries it."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Job:
        """Undo :meth:`to_values`.

        Raises:
            PayloadError: If something is missing, of another type, or out of range.
        """
        kinds = {
            "run": str,
            "client": str,
            "round": int,
            "config": str,
            "census": str,
            "deliver": bool,
            "order": int,
            "after": str,
            "saved": str,
        }
        found = {name: _take(values, name, kind) for name, kind in kinds.items()}
        try:
            claims.client_name(found["client"])
            claims.whole(found["round"], "round", 0, limits.ROUNDS)
            claims.whole(found["order"], "order", 0, limits.ORDER)
            claims.identifier(f"run_{found['run']}", "run")
        except ValueError as error:
            raise PayloadError(str(error)) from None
        for name in ("after", "saved"):
            _check_generation(found[name], name)
        return cls(**found, message=_bytes(values, "message"), state=_bytes(values, "state"))


@dataclass(frozen=True)
class Left:
    """What a visit left of the client, beside its result.

    Attributes:
        generation: Name of the generation that the node keeps now; "" if nothing changed.
        anew: Whether the node had lost the client, and its operator let it begin anew.
        state: The client as :func:`~protofed.training.client.pack` returns it, if it travels and has changed; with
            no model if that has not.
    """

    generation: str = ""
    anew: bool = False
    state: bytes | None = None

    def to_values(self) -> Values:
        """Return the record as Flower carries it."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Left:
        """Undo :meth:`to_values`.

        Raises:
            PayloadError: If something is missing or of another type, or the generation has a name that none has.
        """
        name = _take(values, "generation", str)
        _check_generation(name, "generation")
        return cls(name, _take(values, "anew", bool), _bytes(values, "state"))


def _check_generation(name: str, what: str) -> None:
    if name and not GENERATION.fullmatch(name):
        raise PayloadError(f"{what}: {claims.clean(name, 40)!r} is not the name of a client's state")


def description_values(descriptions: list[Description]) -> Values:
    """Return the answer to a node's first question."""
    return {"clients": json.dumps([asdict(d) for d in descriptions])}


def read_descriptions(values: Mapping[str, Any], most: int = limits.CLIENTS) -> list[Description]:
    """Undo :func:`description_values`.

    Raises:
        PayloadError: If something is missing, of another type or out of range, or there are more than ``most``.
    """
    try:
        found = claims.items(claims.parse(values.get("clients"), "clients"), "clients", most)
        return [description(item) for item in found]
    except ValueError as error:
        raise PayloadError(f"clients: not a description of clients ({claims.clean(error)})") from None


def description(item: object) -> Description:
    """Return a description from plain values.

    Raises:
        ValueError: If something is missing, of another type, or out of range.
    """
    found = claims.mapping(item, "description", Description.__dataclass_fields__)
    name = claims.client_name(found["name"])
    try:
        return _description(name, found)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _description(name: str, found: Mapping[str, Any]) -> Description:
    classes = claims.class_names(found["classes"])
    kind = claims.one_of(found["counts"], "counts", claims.COUNTS)
    validation = claims.whole(found["validation"], "validation", 0, limits.CLAIMED_SAMPLES)
    if validation != claims.withheld(validation, kind):
        raise ValueError(f"validation: not a {kind} count")
    settings = claims.settings(found["settings"])
    settings.pop("counts", None)
    return Description(
        name,
        classes,
        claims.flag(found["named"], "named"),
        claims.counts(found["train"], "train", len(classes), kind),
        claims.counts(found["test"], "test", len(classes), kind),
        validation,
        claims.shape(found["input_shape"]),
        settings,
        claims.whole(found["place"], "place", 0, limits.CLIENTS),
        kind,
    )


def sizes_values(sizes: Mapping[str, Any]) -> Values:
    """Return what a node tells of a model that only it builds."""
    return {"sizes": json.dumps(sizes)}


def read_sizes(values: Mapping[str, Any], d: int) -> dict[str, Any]:
    """Undo :func:`sizes_values`.

    Args:
        values: What came.
        d: Length of the features that the client's settings or the recipe demand.

    Raises:
        PayloadError: If something is missing, of another type, or out of range.
    """
    try:
        found = claims.parse(values.get("sizes"), "sizes", limits.ANSWER_CHARACTERS)
        return sizes(found, d)
    except ValueError as error:
        raise PayloadError(claims.clean(error)) from None


def sizes(item: object, d: int) -> dict[str, Any]:
    """Return the sizes of a model from plain values: ``parameters``, those of its ``extras`` by name, and ``d``.

    Raises:
        ValueError: If something is missing, of another type, or out of range.
    """
    found = claims.mapping(item, "sizes", ("parameters", "extras", "d"))
    extras = found["extras"]
    if not isinstance(extras, Mapping) or len(extras) > limits.NETWORKS:
        raise ValueError(f"extras: expected a table of at most {limits.NETWORKS} networks")
    return {
        "parameters": claims.whole(found["parameters"], "parameters", 1, limits.PARAMETERS),
        "extras": {
            claims.identifier(name, "network"): claims.whole(n, "parameters", 0, limits.PARAMETERS)
            for name, n in extras.items()
        },
        "d": claims.whole(found["d"], "d", d, d),
    }


def trained_values(result: Trained) -> Values:
    """Return a training result as Flower carries it; the losses may be any floats, NaN too."""
    values: Values = {"client": result.client, "losses": json.dumps(result.losses), "seconds": result.seconds}
    return values if result.message is None else {**values, "message": result.message}


def read_trained(values: Mapping[str, Any], name: str, scored: Scored) -> Trained:
    """Undo :func:`trained_values`; the number of samples is what the client described, whatever it says now.

    Raises:
        PayloadError: If something is missing, of another type, or too much.
    """
    message = _bytes(values, "message")
    losses = _numbers(values, "losses")
    return Trained(name, message, losses, scored.train, _seconds(values))


def evaluated_values(result: Evaluated, counts: str = "exact") -> Values:
    """Return an evaluation as Flower carries it.

    Args:
        result: The evaluation.
        counts: If not ``exact``, scores go as correct of :data:`SHARES`, which hides numbers of samples.
    """
    (validation, held_out), values = result.validation, {"client": result.client, "seconds": result.seconds}
    if counts == "exact":
        shown = result.correct, validation
    else:
        shown = _shares(result.correct, result.samples), _shares(validation, held_out)
    return {**values, "correct": json.dumps(shown[0]), "validation": json.dumps(shown[1])}


def read_evaluated(values: Mapping[str, Any], name: str, scored: Scored, rules: tuple[str, ...]) -> Evaluated:
    """Undo :func:`evaluated_values`.

    Raises:
        PayloadError: If a rule is missing or a count is impossible.
    """
    correct = _counts(values, "correct", rules, scored.test, scored.shares)
    held_out = {}
    if scored.validation:
        held_out = _counts(values, "validation", rules, scored.validation, scored.shares)
    return Evaluated(name, correct, scored.test, _seconds(values), (held_out, scored.validation))


def _shares(correct: Mapping[str, float], samples: int) -> dict[str, int]:
    return {rule: round(SHARES * n / samples) if samples else 0 for rule, n in correct.items()}


def _numbers(values: Mapping[str, Any], where: str) -> dict[str, float]:
    """Return a table of named numbers, which may be NaN or infinite, as losses of a diverged model are."""
    text = _take(values, where, str)
    try:
        if len(text) > limits.ANSWER_CHARACTERS:
            raise ValueError(f"{len(text)} characters, at most {limits.ANSWER_CHARACTERS} are allowed")
        found = json.loads(text)
        if not isinstance(found, dict) or len(found) > limits.LOSSES:
            raise ValueError(f"expected at most {limits.LOSSES} named numbers")
        return {claims.class_name(name): _real(value) for name, value in found.items()}
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"{where}: not a table of numbers ({claims.clean(error, 160)})") from None


def _real(value: object) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"expected numbers, not {type(value).__name__}")
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise ValueError("a number that no float holds") from None


def _counts(
    values: Mapping[str, Any], where: str, rules: tuple[str, ...], samples: int, shares: bool
) -> dict[str, float]:
    """Return how many of ``samples`` each rule has right."""
    found, most = _numbers(values, where), SHARES if shares and samples else samples
    for rule in rules:
        if not 0 <= found.get(rule, -1) <= most or found[rule] % 1:
            raise PayloadError(f"{where}: {rule} must be a count from 0 to {most}, not {found.get(rule)}")
    return {rule: found[rule] / most * samples if shares and samples else int(found[rule]) for rule in rules}


def _seconds(values: Mapping[str, Any]) -> float:
    seconds = float(_take(values, "seconds", float))
    return seconds if math.isfinite(seconds) and seconds >= 0 else 0.0


def _bytes(values: Mapping[str, Any], name: str) -> bytes | None:
    return _take(values, name, bytes) if name in values else None


def _take(values: Mapping[str, Any], name: str, kind: type) -> Any:
    value = values.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise PayloadError(f"{name}: must be {kind.__name__}, not {type(value).__name__}")
    return value
