"""What the server asks of nodes and what they answer, as plain values: text, numbers and bytes, never pickles.

What comes from the other side is checked here for its form; what a payload may contain is the wire's business.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from protofed.errors import PayloadError
from protofed.training import Evaluated, Trained

Values = dict[str, Any]
"""What Flower's ``ConfigRecord`` holds: text, numbers, bytes."""
GENERATION = re.compile(r"[0-9]{6,9}-[0-9a-f]{16}")
"""Names of generations, as :class:`~protofed.flower.state.ClientFolder` gives them."""


@dataclass(frozen=True)
class Description:
    """What a node tells of one of its clients before the first round.

    Attributes:
        name: The client's name, unique in the federation.
        classes: Names of the classes it knows.
        named: Whether its data name their classes, or number them.
        train: Training samples of each class.
        test: Test samples of each class.
        validation: Validation samples.
        input_shape: Shape of one sample.
        settings: What it decides for itself (its ``client.toml``).
        place: Where it comes in the order of clients; those of one place are in the order of their names.
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
            PayloadError: If something is missing or of another type.
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
        if name and not GENERATION.fullmatch(name):
            raise PayloadError("generation: not the name of one")
        return cls(name, _take(values, "anew", bool), _bytes(values, "state"))


def description_values(descriptions: list[Description]) -> Values:
    """Return the answer to a node's first question."""
    return {"clients": json.dumps([asdict(d) for d in descriptions])}


def read_descriptions(values: Mapping[str, Any]) -> list[Description]:
    """Undo :func:`description_values`.

    Raises:
        PayloadError: If it is damaged.
    """
    try:
        found = json.loads(_take(values, "clients", str))
        if not isinstance(found, list):
            raise ValueError("expected a list")
        return [description(item) for item in found]
    except (ValueError, TypeError, KeyError) as error:
        raise PayloadError(f"clients: not a description of clients ({error})") from None


def description(item: Mapping[str, Any]) -> Description:
    """Return a description from plain values."""
    train, test = ([int(n) for n in item[part]] for part in ("train", "test"))
    classes = tuple(str(name) for name in item["classes"])
    if not len(classes) == len(train) == len(test) or min(*train, *test, 0) < 0:
        raise ValueError(f"{item['name']}: counts do not fit its {len(classes)} classes")
    return Description(
        str(item["name"]),
        classes,
        bool(item["named"]),
        tuple(train),
        tuple(test),
        int(item["validation"]),
        tuple(int(n) for n in item["input_shape"]),
        dict(item["settings"]),
        int(item["place"]),
    )


def trained_values(result: Trained) -> Values:
    """Return a training result as Flower carries it; the losses may be any floats, NaN too."""
    values: Values = {"client": result.client, "losses": json.dumps(result.losses), "seconds": result.seconds}
    return values if result.message is None else {**values, "message": result.message}


def read_trained(values: Mapping[str, Any], name: str, samples: int) -> Trained:
    """Undo :func:`trained_values`; the number of samples is what the client described, whatever it says now.

    Raises:
        PayloadError: If something is missing, of another type, or too much.
    """
    message = _bytes(values, "message")
    losses = _numbers(_take(values, "losses", str), "losses")
    return Trained(name, message, losses, samples, _seconds(values))


def evaluated_values(result: Evaluated) -> Values:
    """Return an evaluation as Flower carries it."""
    values: Values = {"client": result.client, "correct": json.dumps(result.correct), "seconds": result.seconds}
    return {**values, "validation": json.dumps(result.validation[0])}


def read_evaluated(values: Mapping[str, Any], described: Description, rules: tuple[str, ...]) -> Evaluated:
    """Undo :func:`evaluated_values`.

    Raises:
        PayloadError: If a rule is missing or a count is impossible.
    """
    test = sum(described.test)
    correct = _counts(_take(values, "correct", str), "correct", rules, test)
    held_out = {}
    if described.validation:
        text = _take(values, "validation", str)
        held_out = _counts(text, "validation", rules, described.validation)
    return Evaluated(described.name, correct, test, _seconds(values), (held_out, described.validation))


MOST_LOSSES = 64


def _numbers(text: str, where: str) -> dict[str, float]:
    try:
        found = json.loads(text)
        if not isinstance(found, dict) or len(found) > MOST_LOSSES:
            raise ValueError(f"expected at most {MOST_LOSSES} named numbers")
        return {str(name): float(value) for name, value in found.items()}
    except (ValueError, TypeError) as error:
        raise PayloadError(f"{where}: not a table of numbers ({error})") from None


def _counts(text: str, where: str, rules: tuple[str, ...], most: int) -> dict[str, int]:
    found = _numbers(text, where)
    for rule in rules:
        if not 0 <= found.get(rule, -1) <= most or found[rule] % 1:
            raise PayloadError(f"{where}: {rule} must be a count from 0 to {most}, not {found.get(rule)}")
    return {rule: int(found[rule]) for rule in rules}


def _seconds(values: Mapping[str, Any]) -> float:
    seconds = float(_take(values, "seconds", float))
    return seconds if math.isfinite(seconds) else 0.0


def _bytes(values: Mapping[str, Any], name: str) -> bytes | None:
    return _take(values, name, bytes) if name in values else None


def _take(values: Mapping[str, Any], name: str, kind: type) -> Any:
    value = values.get(name)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise PayloadError(f"{name}: must be {kind.__name__}, not {type(value).__name__}")
    return value
