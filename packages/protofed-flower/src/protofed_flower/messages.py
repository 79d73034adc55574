"""Requests of the server and answers of nodes, as plain values: text, numbers and bytes, never pickles.

Everything received is checked here for type and range before it is used; the contents of payloads are checked by
``protofed.wire``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypedDict

from msgspec import Meta

from protofed.data.tables import SiteColumn
from protofed.engine import EncoderKey, Evaluated, Trained
from protofed.errors import PayloadError
from protofed.untrusted import claims, limits
from protofed.untrusted.decoding import (
    ClassNames,
    ClientName,
    Identifier,
    Round,
    SampleCount,
    Settings,
    Shape,
    Side,
    check_with,
    decode,
    parse,
    take,
    within,
)

Values = dict[str, Any]  #: Contents of Flower's ``ConfigRecord``: text, numbers, bytes
RunName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_]{1,60}\Z")]
SHARES = 100  #: Denominator of the scores of a client that withholds its counts: these are percentages
GENERATION = re.compile(r"[0-9]{6,9}-[0-9a-f]{16}")
"""Names of generations, as :class:`~protofed_flower.state.ClientFolder` gives them."""


def _generation(value: Any) -> str:
    if not isinstance(value, str) or (value and not GENERATION.fullmatch(value)):
        raise ValueError(f"{claims.clean(value, 40)!r} is not the name of a client's state")
    return value


if TYPE_CHECKING:
    OwnSettings = dict[str, Any]
    Told = str
    GenerationName = str
else:
    GenerationName = check_with(_generation)
    OwnSettings = Settings
    Told = Literal[*claims.COUNTS, claims.EVEN]


@dataclass(frozen=True)
class Description:
    """A node's description of one of its clients before the first round."""

    name: ClientName  #: Unique in the federation
    classes: ClassNames
    named: bool  #: The data name their classes; otherwise they number them
    train: tuple[SampleCount, ...]  #: Training samples per class, rounded as ``counts`` specifies
    test: tuple[SampleCount, ...]  #: Test samples per class, rounded likewise
    validation: SampleCount
    input_shape: Shape
    #: Its ``client.toml``, without the name of a model of its own
    settings: OwnSettings = field(default_factory=dict)
    #: Position in the order of clients; equal ones are ordered by name
    place: Annotated[int, within(least=0, most=limits.CLIENTS)] = 0
    #: ``exact``; ``coarse`` for numbers rounded up to a power of two; ``none`` for 1 in place of any number above
    #: 0; or ``even`` for the number of training samples dealt evenly among the classes
    counts: Told = "exact"
    #: Columns of its samples, with sums over them if ``data.standardise`` asks for these; ``input_shape`` is then
    #: that of a raw sample. None if its samples are neither a table nor standardised
    table: Annotated[tuple[SiteColumn, ...], Meta(max_length=limits.COLUMNS)] | None = None
    #: Hash of the encoder with its weights; ``input_shape`` is that of a sample before it. "" for none
    encoder: EncoderKey = ""
    reading: EncoderKey = ""  #: Hash of how it makes inputs of columns; "" if it has none


@dataclass(frozen=True)
class Expected:
    """The class and column names that a server expects of all nodes; empty to take them from the data."""

    classes: ClassNames = ()
    columns: Annotated[tuple[SiteColumn, ...], Meta(max_length=limits.COLUMNS)] = ()

    def to_json(self) -> str:
        """Return the record as text."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: object) -> Expected:
        """Return a record from text; the inverse of :meth:`to_json`."""
        try:
            return decode(parse(text, "expected"), cls, error=ValueError, exact=True)
        except ValueError as error:
            raise PayloadError(claims.clean(error)) from None


@dataclass(frozen=True)
class Scored:
    """Numbers of samples by which a client's losses and scores count in averages."""

    train: int
    test: int
    validation: int
    shares: bool = False  #: Scores are shares out of :data:`SHARES` instead of numbers of samples
    #: Test and validation samples out of which it is scored, if it says that it has more
    stated: tuple[int, int] | None = None

    def out_of(self) -> tuple[int, int]:
        """Return the largest scores on test and validation samples."""
        test, validation = self.stated or (self.test, self.validation)
        return (SHARES if self.shares and test else test), (SHARES if self.shares and validation else validation)


@dataclass(frozen=True)
class _Sent:
    """A record that is sent as the values of a message, without those that are None."""

    def to_values(self) -> Values:
        """Return the record as the values of a message."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return a record from the values of a message; the inverse of :meth:`to_values`."""
        return decode(dict(values), cls, error=PayloadError)


@dataclass(frozen=True)
class Job(_Sent):
    """A visit that the server requests."""

    run: RunName  #: Survives restarts of the server
    client: ClientName
    round: Round
    config: str  #: As JSON
    summary: str  #: Of :func:`~protofed_flower.summary.client_summaries`, as JSON
    message: bytes | None = None
    deliver: bool = True  #: Deliver the broadcast before an evaluation
    trains: bool = False  #: Train the client, in a message that asks for scores
    #: Increases throughout a run, also across restarts of the server
    order: Annotated[int, within(least=0, most=limits.ORDER)] = 0
    #: Generation from which, or from a descendant of which, the visit must start; "" for the client as it was
    #: before the run
    after: GenerationName = ""
    saved: GenerationName = ""  #: Generation in the server's last checkpoint
    #: Of :func:`protofed.storage.snapshots.pack`, if the client travels with its visits; None if its node keeps it
    state: bytes | None = None


@dataclass(frozen=True)
class VisitOutcome(_Sent):
    """The client's stored state after a visit."""

    generation: GenerationName = ""  #: The generation that the node has stored; "" if the client did not change
    anew: bool = False  #: The node had lost the client's state and its operator allowed a fresh start
    #: Of :func:`protofed.storage.snapshots.pack`, if the client travels and has changed; without an unchanged model
    state: bytes | None = None


def description_values(descriptions: list[Description]) -> Values:
    """Return descriptions as the values of a message."""
    return {"clients": json.dumps([asdict(d) for d in descriptions])}


def read_descriptions(values: Mapping[str, Any], most: int = limits.CLIENTS) -> list[Description]:
    """Read descriptions from the values of a message; the inverse of :func:`description_values`."""
    kind: Any = Annotated[list[Any], Meta(max_length=most)]
    try:
        items = decode(parse(values.get("clients"), "clients"), kind, error=ValueError)
        return [description(item) for item in items]
    except ValueError as error:
        raise PayloadError(f"clients: not a description of clients ({claims.clean(error)})") from None


def description(item: object) -> Description:
    """Return a description from plain values."""
    found = decode(item, Description, _name(item), ValueError, exact=True)
    try:
        _check(found)
    except ValueError as error:
        raise ValueError(f"{found.name}: {error}") from None
    return replace(found, settings={name: value for name, value in found.settings.items() if name != "counts"})


if TYPE_CHECKING:
    ValidDescription = Description
else:
    ValidDescription = check_with(description)


def _name(item: object) -> str:
    """Return the name in a description; "" without a description that has one."""
    return claims.client_name(item["name"]) if isinstance(item, Mapping) and "name" in item else ""


def _check(found: Description) -> None:
    """Refuse a description whose parts do not fit each other."""
    for what, counts in (("train", found.train), ("test", found.test)):
        if len(counts) != len(found.classes):
            raise ValueError(f"{what}: {len(counts)} counts do not fit {len(found.classes)} classes")
        if sum(counts) > limits.CLAIMED_SAMPLES:
            raise ValueError(f"{what}: {sum(counts)} samples, at most {limits.CLAIMED_SAMPLES} are allowed")
    for what, counts in (("train", found.train), ("test", found.test), ("validation", (found.validation,))):
        if any(n != claims.withheld(n, found.counts) for n in counts):
            expected = "0 or 1" if found.counts == "none" else "powers of two"
            raise ValueError(f"{what}: not {found.counts} counts: expected {expected}")
    columns, shape = found.table, found.input_shape
    if columns is None:
        return
    if len(columns) != shape[0] or len({column.name for column in columns}) < len(columns):
        raise ValueError(f"table: expected {shape[0]} columns with different names")
    unreported = len(found.classes) * found.settings.get("least_samples", 0)
    for column in columns:
        if column.number > (sum(found.train) + unreported) * math.prod(shape[1:]):
            raise ValueError(f"table: more values of {column.name!r} than training samples")


def sizes_values(sizes: Mapping[str, Any]) -> Values:
    """Return the sizes of a model that only its node builds as the values of a message."""
    return {"sizes": json.dumps(sizes)}


def read_sizes(values: Mapping[str, Any], d: int) -> dict[str, Any]:
    """Read the sizes of a model from the values of a message; the inverse of :func:`sizes_values`."""
    try:
        return sizes(parse(values.get("sizes"), "sizes", limits.ANSWER_CHARACTERS), d)
    except ValueError as error:
        raise PayloadError(claims.clean(error)) from None


def sizes(item: object, d: int) -> dict[str, Any]:
    """Return ``parameters``, ``extras`` by name, and ``d`` of a model from plain values."""
    found = decode(item, _Sizes, error=ValueError, exact=True)
    if found["d"] != d:
        raise ValueError(f"d: must be {d}, not {found['d']}")
    return {**found}


_Size = Annotated[int, within(least=0, most=limits.PARAMETERS)]


class _Sizes(TypedDict):
    parameters: Annotated[int, within(least=1, most=limits.PARAMETERS)]
    extras: Annotated[dict[Identifier, _Size], Meta(max_length=limits.NETWORKS)]
    d: Side


def trained_values(result: Trained) -> Values:
    """Return a training result as the values of a message; losses may be any floats, including NaN."""
    values: Values = {"client": result.client, "losses": json.dumps(result.losses), "seconds": result.seconds}
    # What broke may have been told in the words of a value: only that something did leaves.
    values |= {"failure": result.failure.partition(" (")[0]} if result.failure else {}
    return values if result.message is None else {**values, "message": result.message}


def read_trained(values: Mapping[str, Any], name: str, scored: Scored) -> Trained:
    """Read a training result from a message, whose numbers of samples must be those of ``scored``."""
    message = take(values, "message", bytes) if "message" in values else None
    losses = _numbers(values, "losses")
    failure = claims.clean(values.get("failure", "")) if message is None else ""
    return Trained(name, message, losses, scored.train, _seconds(values), failure)


def evaluated_values(result: Evaluated, counts: str = "exact") -> Values:
    """Return an evaluation as the values of a message.

    Args:
        counts: One of :data:`protofed.untrusted.claims.COUNTS`; unless ``exact``, scores are shares out of
            :data:`SHARES`, which hides the numbers.
    """
    (validation, held_out), values = result.validation, {"client": result.client, "seconds": result.seconds}
    correct = result.correct
    if counts != "exact":
        correct, validation = _shares(correct, result.samples), _shares(validation, held_out)
    return {**values, "correct": json.dumps(correct), "validation": json.dumps(validation)}


def read_evaluated(values: Mapping[str, Any], name: str, scored: Scored, rules: tuple[str, ...]) -> Evaluated:
    """Read an evaluation from the values of a message; the inverse of :func:`evaluated_values`."""
    test, validation = scored.out_of()
    correct = _counts(values, "correct", rules, scored.test, test)
    held_out = {}
    if scored.validation:
        held_out = _counts(values, "validation", rules, scored.validation, validation)
    return Evaluated(name, correct, scored.test, _seconds(values), (held_out, scored.validation))


def _shares(correct: Mapping[str, float], samples: int) -> dict[str, int]:
    return {rule: round(SHARES * n / samples) if samples else 0 for rule, n in correct.items()}


def _numbers(values: Mapping[str, Any], where: str) -> dict[str, float]:
    """Return a table of named numbers, which may be NaN or infinite, like the losses of a diverged model."""
    text = take(values, where, str)
    try:
        if len(text) > limits.ANSWER_CHARACTERS:
            raise ValueError(f"{len(text)} characters, at most {limits.ANSWER_CHARACTERS} are allowed")
        kind: Any = Annotated[dict[str, float], Meta(max_length=limits.LOSSES)]
        table = decode(json.loads(text), kind, error=ValueError)
        return {claims.class_name(name): value for name, value in table.items()}
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"{where}: not a table of numbers ({claims.clean(error, 160)})") from None


def _counts(
    values: Mapping[str, Any], where: str, rules: tuple[str, ...], samples: int, most: int
) -> dict[str, float]:
    """Return the number of ``samples`` that each rule classifies correctly, given scores out of ``most``."""
    correct = _numbers(values, where)
    for rule in rules:
        if not 0 <= correct.get(rule, -1) <= most or correct[rule] % 1:
            raise PayloadError(f"{where}: {rule} must be a count from 0 to {most}, not {correct.get(rule)}")
    return {rule: int(correct[rule]) if most == samples else correct[rule] / most * samples for rule in rules}


def _seconds(values: Mapping[str, Any]) -> float:
    seconds = float(take(values, "seconds", float))
    return seconds if math.isfinite(seconds) and seconds >= 0 else 0.0
