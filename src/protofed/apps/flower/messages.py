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
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from protofed.data.tables import SiteColumn, check_column
from protofed.errors import PayloadError
from protofed.experiments.ending import encoder_key
from protofed.untrusted import claims, limits
from protofed.untrusted.decoding import ClientName, checked, decoded, take
from protofed.visits.contract import Evaluated, Trained

Values = dict[str, Any]
"""Contents of Flower's ``ConfigRecord``: text, numbers, bytes."""
SHARES = 100
"""Denominator of the scores of a client that withholds its counts: these are percentages."""
GENERATION = re.compile(r"[0-9]{6,9}-[0-9a-f]{16}")
"""Names of generations, as :class:`~protofed.apps.flower.state.ClientFolder` gives them."""


def _generation(value: Any) -> str:
    if not isinstance(value, str) or (value and not GENERATION.fullmatch(value)):
        raise ValueError(f"{claims.clean(value, 40)!r} is not the name of a client's state")
    return value


if TYPE_CHECKING:
    ClassNames = tuple[str, ...]
    Disclosure = str
    EncoderKey = str
    GenerationName = str
    RunName = str
    Settings = dict[str, Any]
    Shape = tuple[int, ...]
else:
    ClassNames, EncoderKey, GenerationName = checked(claims.class_names), checked(encoder_key), checked(_generation)
    RunName = checked(lambda value: claims.identifier(f"run_{value}", "run")[4:])
    Disclosure = Literal[*claims.COUNTS, claims.EVEN]
    Settings, Shape = checked(claims.settings), checked(claims.shape)


@dataclass(frozen=True)
class Description:
    """A node's description of one of its clients before the first round.

    Attributes:
        name: Unique in the federation.
        named: The data name their classes; otherwise they number them.
        train: Training samples per class, rounded as ``counts`` specifies.
        test: Test samples per class, rounded likewise.
        settings: Its ``client.toml``, without the name of a model of its own.
        place: Position in the order of clients; equal ones are ordered by name.
        counts: ``exact``; ``coarse`` for numbers rounded up to a power of two; ``none`` for 1 in place of any
            number above 0; or ``even`` for the number of training samples dealt evenly among the classes.
        table: Columns of its samples, with sums over them if ``data.standardise`` asks for these; ``input_shape``
            is then that of a raw sample. None if its samples are neither a table nor standardised.
        encoder: Hash of the encoder with its weights; ``input_shape`` is that of a sample before it. "" for none.
    """

    name: ClientName
    classes: ClassNames
    named: bool
    train: tuple[int, ...]
    test: tuple[int, ...]
    validation: Annotated[int, Meta(ge=0, le=limits.CLAIMED_SAMPLES)]
    input_shape: Shape
    settings: Settings = field(default_factory=dict)
    place: Annotated[int, Meta(ge=0, le=limits.CLIENTS)] = 0
    counts: Disclosure = "exact"
    table: Annotated[tuple[SiteColumn, ...], Meta(max_length=limits.COLUMNS)] | None = None
    encoder: EncoderKey = ""


@dataclass(frozen=True)
class Scored:
    """Numbers of samples by which a client's losses and scores count in averages.

    Attributes:
        shares: Scores are shares out of :data:`SHARES` instead of numbers of samples.
        stated: Test and validation samples out of which it is scored, if it says that it has more.
    """

    train: int
    test: int
    validation: int
    shares: bool = False
    stated: tuple[int, int] | None = None

    def out_of(self) -> tuple[int, int]:
        """Return the largest scores on test and validation samples."""
        test, validation = self.stated or (self.test, self.validation)
        return (SHARES if self.shares and test else test), (SHARES if self.shares and validation else validation)


@dataclass(frozen=True)
class Job:
    """A visit that the server requests.

    Attributes:
        run: Survives restarts of the server.
        config: As JSON.
        summary: Of :func:`~protofed.apps.flower.summary.client_summaries`, as JSON.
        deliver: Deliver the broadcast before an evaluation.
        trains: Train the client, in a message that asks for scores.
        order: Increases throughout a run, also across restarts of the server.
        after: Generation from which, or from a descendant of which, the visit must start; "" for the client as it
            was before the run.
        saved: Generation in the server's last checkpoint.
        state: Of :func:`protofed.storage.snapshots.pack`, if the client travels with its visits; None if its node
            keeps it.
    """

    run: RunName
    client: ClientName
    round: Annotated[int, Meta(ge=0, le=limits.ROUNDS)]
    config: str
    summary: str
    message: bytes | None = None
    deliver: bool = True
    trains: bool = False
    order: Annotated[int, Meta(ge=0, le=limits.ORDER)] = 0
    after: GenerationName = ""
    saved: GenerationName = ""
    state: bytes | None = None

    def to_values(self) -> Values:
        """Return the job as the values of a message."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Job:
        """Return a job from the values of a message; the inverse of :meth:`to_values`."""
        return decoded(dict(values), cls, error=PayloadError)


@dataclass(frozen=True)
class VisitOutcome:
    """The client's stored state after a visit.

    Attributes:
        generation: The generation that the node has stored; "" if the client did not change.
        anew: The node had lost the client's state and its operator allowed a fresh start.
        state: Of :func:`protofed.storage.snapshots.pack`, if the client travels and has changed; without an
            unchanged model.
    """

    generation: GenerationName = ""
    anew: bool = False
    state: bytes | None = None

    def to_values(self) -> Values:
        """Return the record as the values of a message."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> VisitOutcome:
        """Return a record from the values of a message; the inverse of :meth:`to_values`."""
        return decoded(dict(values), cls, error=PayloadError)


def description_values(descriptions: list[Description]) -> Values:
    """Return descriptions as the values of a message."""
    return {"clients": json.dumps([asdict(d) for d in descriptions])}


def read_descriptions(values: Mapping[str, Any], most: int = limits.CLIENTS) -> list[Description]:
    """Read descriptions from the values of a message; the inverse of :func:`description_values`."""
    try:
        items = claims.items(claims.parse(values.get("clients"), "clients"), "clients", most)
        return [description(item) for item in items]
    except ValueError as error:
        raise PayloadError(f"clients: not a description of clients ({claims.clean(error)})") from None


def description(item: object) -> Description:
    """Return a description from plain values."""
    fields = claims.mapping(item, "description", Description.__dataclass_fields__)
    name = claims.client_name(fields["name"])
    try:
        return _description(name, fields)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _description(name: str, fields: Mapping[str, Any]) -> Description:
    for column in fields["table"] if isinstance(fields["table"], list) else ():
        claims.mapping(column, "column", SiteColumn.__dataclass_fields__)
    found = decoded(fields, Description, error=ValueError)
    for what in ("train", "test"):
        claims.counts(getattr(found, what), what, len(found.classes), found.counts)
    if found.validation != claims.withheld(found.validation, found.counts):
        raise ValueError(f"validation: not a {found.counts} count")
    if found.table is not None:
        _check_table(found.table, sum(found.train), found.input_shape)
    settings = {name: value for name, value in found.settings.items() if name != "counts"}
    return replace(found, name=name, settings=settings)


def _check_table(columns: tuple[SiteColumn, ...], samples: int, shape: tuple[int, ...]) -> None:
    """Refuse columns that do not fit a number of training samples of some raw shape."""
    if len(columns) != shape[0] or len({column.name for column in columns}) < len(columns):
        raise ValueError(f"table: expected {shape[0]} columns with different names")
    for column in columns:
        check_column(column)
        if column.number > samples * math.prod(shape[1:]):
            raise ValueError(f"table: more values of {column.name!r} than training samples")


def sizes_values(sizes: Mapping[str, Any]) -> Values:
    """Return the sizes of a model that only its node builds as the values of a message."""
    return {"sizes": json.dumps(sizes)}


def read_sizes(values: Mapping[str, Any], d: int) -> dict[str, Any]:
    """Read the sizes of a model from the values of a message; the inverse of :func:`sizes_values`."""
    try:
        return sizes(claims.parse(values.get("sizes"), "sizes", limits.ANSWER_CHARACTERS), d)
    except ValueError as error:
        raise PayloadError(claims.clean(error)) from None


def sizes(item: object, d: int) -> dict[str, Any]:
    """Return the sizes of a model from plain values.

    Returns:
        ``parameters``, ``extras`` by name, and ``d``.
    """
    fields = claims.mapping(item, "sizes", ("parameters", "extras", "d"))
    extras = fields["extras"]
    if not isinstance(extras, Mapping) or len(extras) > limits.NETWORKS:
        raise ValueError(f"extras: expected a table of at most {limits.NETWORKS} networks")
    return {
        "parameters": claims.whole(fields["parameters"], "parameters", 1, limits.PARAMETERS),
        "extras": {
            claims.identifier(name, "network"): claims.whole(n, "parameters", 0, limits.PARAMETERS)
            for name, n in extras.items()
        },
        "d": claims.whole(fields["d"], "d", d, d),
    }


def trained_values(result: Trained) -> Values:
    """Return a training result as the values of a message; losses may be any floats, including NaN."""
    values: Values = {"client": result.client, "losses": json.dumps(result.losses), "seconds": result.seconds}
    return values if result.message is None else {**values, "message": result.message}


def read_trained(values: Mapping[str, Any], name: str, scored: Scored) -> Trained:
    """Read a training result from the values of a message; the inverse of :func:`trained_values`.

    Args:
        scored: Numbers of samples that the answer cannot change.
    """
    message = _bytes(values, "message")
    losses = _numbers(values, "losses")
    return Trained(name, message, losses, scored.train, _seconds(values))


def evaluated_values(result: Evaluated, counts: str = "exact") -> Values:
    """Return an evaluation as the values of a message.

    Args:
        counts: One of :data:`protofed.untrusted.claims.COUNTS`; unless ``exact``, scores are shares out of
            :data:`SHARES`, which hides the numbers.
    """
    (validation, held_out), values = result.validation, {"client": result.client, "seconds": result.seconds}
    if counts == "exact":
        shown = result.correct, validation
    else:
        shown = _shares(result.correct, result.samples), _shares(validation, held_out)
    return {**values, "correct": json.dumps(shown[0]), "validation": json.dumps(shown[1])}


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
        table = json.loads(text)
        if not isinstance(table, dict) or len(table) > limits.LOSSES:
            raise ValueError(f"expected at most {limits.LOSSES} named numbers")
        return {claims.class_name(name): _real(value) for name, value in table.items()}
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"{where}: not a table of numbers ({claims.clean(error, 160)})") from None


def _real(value: object) -> float:
    if type(value) not in (int, float):
        raise ValueError(f"expected numbers, not {type(value).__name__}")
    try:
        return float(value)  # type: ignore[arg-type]
    except OverflowError:
        raise ValueError("a number too large for a float") from None


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


def _bytes(values: Mapping[str, Any], name: str) -> bytes | None:
    return take(values, name, bytes) if name in values else None
