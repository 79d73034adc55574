"""The record of a round: one line of ``rounds.jsonl``, written and read."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from msgspec import Meta, Struct

from protofed.errors import CheckpointError, DivergedError, PayloadError
from protofed.runs.findings import Findings, WrittenFindings
from protofed.runs.spent import Spent
from protofed.untrusted.decoding import LARGEST, Count, Number, Ordinal, decode

if TYPE_CHECKING:
    from protofed.visits.contract import Trained

WAYS = ("up", "down")  #: Directions of traffic: from clients to the server, and back

SECONDS = ("total", "training", "evaluation", "aggregation")  #: The total time of a round, and its parts

SCORED = ("accuracy", "validation", "union", "unseen", "newcomers")
"""The data on which a round may have scored clients."""


class Ways(TypedDict):
    """Numbers by direction."""

    up: Count
    down: Count


class Seconds(TypedDict):
    """Times of a round."""

    total: Number
    training: Number
    evaluation: Number
    aggregation: Number


class Scores(Struct):
    """Accuracies by one inference rule, as they are written."""

    weighted: Number
    client_mean: Number
    client_std: Number
    clients: list[Number | None]


_Scored = Annotated[dict[str, Scores], Meta(min_length=1)]


@dataclass(frozen=True)
class Accuracy:
    """Accuracies of one evaluation, per inference rule."""

    weighted: dict[str, float]  #: Correct over all samples of all clients
    clients: dict[str, list[float | None]]  #: In their fixed order; None for a client without samples
    spreads: dict[str, tuple[float, float]]  #: Unweighted mean over clients and (population) standard deviation

    @classmethod
    def of(cls, results: Sequence[tuple[Mapping[str, float], int]], rules: Sequence[str]) -> Accuracy:
        """Return the accuracies of an evaluation, from each client's correct answers by rule and samples."""
        total = sum(samples for _, samples in results)
        weighted = {
            rule: sum(correct.get(rule, 0) for correct, _ in results) / total if total else 0.0 for rule in rules
        }
        clients = {rule: [c[rule] / n if n else None for c, n in results] for rule in rules}
        return cls(weighted, clients, {rule: _spread(values) for rule, values in clients.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return the accuracies as plain values."""
        return {
            rule: {
                "weighted": weighted,
                "client_mean": self.spreads[rule][0],
                "client_std": self.spreads[rule][1],
                "clients": self.clients[rule],
            }
            for rule, weighted in self.weighted.items()
        }

    @classmethod
    def read(cls, scores: Mapping[str, Scores]) -> Accuracy:
        """Undo :meth:`to_dict`."""
        return cls(
            {rule: part.weighted for rule, part in scores.items()},
            {rule: part.clients for rule, part in scores.items()},
            {rule: (part.client_mean, part.client_std) for rule, part in scores.items()},
        )


@dataclass(frozen=True)
class Refusal:
    """An upload that broke its schema; it ``diverged`` if numbers were not finite or too large."""

    client: str
    field: str
    reason: str
    diverged: bool = False


@dataclass(frozen=True)
class Absence:
    """A client that gave no result."""

    client: str
    phase: str  #: ``training``, ``aggregation`` (of masked uploads) or ``evaluation``
    reason: str


@dataclass(frozen=True)
class Attack:
    """Hostile clients of a simulation."""

    clients: list[str]
    honest: Mapping[str, Number | None] = field(default_factory=dict)  #: Accuracy of the other clients, by rule
    #: Success rate of a backdoor, by rule; empty without one
    success: Mapping[str, Number | None] = field(default_factory=dict)


@dataclass
class RoundRecord:
    """One round."""

    round: int  #: From 1
    participants: list[str]  #: Those that trained
    accuracy: Accuracy | None = None  #: On the test data, if evaluated
    validation: Accuracy | None = None  #: On the validation data
    union: Accuracy | None = None  #: Of every client on all clients' test samples
    unseen: Accuracy | None = None  #: On those of them whose classes the client has no training samples of
    newcomers: Accuracy | None = None  #: Of the clients that joined after training, on their own test data
    #: Mean per training sample, per term, and their ``total``; None where not finite
    losses: dict[str, float | None] = field(default_factory=dict)
    not_finite: dict[str, list[str]] = field(default_factory=dict)  #: Terms that were not finite first, by client
    #: Encoded size of all messages, ``up`` and ``down``
    bytes: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    #: Numbers sent as the papers count them, ``up`` and ``down``
    parameters: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    #: Of each of :data:`SECONDS`
    seconds: dict[str, float] = field(
        default_factory=lambda: {"training": 0.0, "aggregation": 0.0, "evaluation": 0.0, "total": 0.0}
    )
    refused: list[Refusal] = field(default_factory=list)  #: Uploads that broke their schema
    missing: list[Absence] = field(default_factory=list)
    attempts: int = 1  #: Number of beginnings, more than one if too few clients had answered
    robust: Findings = field(default_factory=Findings)  #: Changes and omissions of the robust stage
    attack: Attack | None = None
    privacy: Spent | None = None  #: Cost of differential privacy so far
    diagnostics: dict[str, Any] = field(default_factory=dict)  #: Measurements of the method

    @property
    def sent(self) -> int:
        """Bytes of all messages in both directions."""
        return self.bytes["up"] + self.bytes["down"]

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the time that the block takes to a part of :data:`SECONDS`."""
        start = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - start

    def awaited(self, results: Iterator[Any]) -> Iterator[Any]:
        """Yield results as they arrive; the wait counts as training, and not as the aggregation that reads them."""
        while True:
            start = time.perf_counter()
            result = next(results, None)
            waited = time.perf_counter() - start
            self.seconds["training"] += waited
            self.seconds["aggregation"] -= waited
            if result is None:
                return
            yield result

    def add_traffic(self, direction: str, size: int, parameters: int) -> None:
        """Count one message, ``up`` or ``down``, with the numbers in it that papers count."""
        self.bytes[direction] += size
        self.parameters[direction] += parameters

    def refuse(self, client: str, error: PayloadError) -> None:
        """Note an upload that was left out, by an error ``field: reason``."""
        name, _, reason = str(error).partition(": ")
        self.refused.append(Refusal(client, name, reason, isinstance(error, DivergedError)))

    def lose(self, client: str, reason: str, phase: str) -> None:
        """Note a client that gave no result in a phase: ``training``, ``aggregation`` or ``evaluation``."""
        self.missing.append(Absence(client, phase, reason))

    def set_losses(self, trained: Sequence[Trained]) -> None:
        """Average the clients' losses, weighted by their numbers of samples, and note those that are not finite."""
        found = {t.client: [name for name, loss in t.losses.items() if not abs(loss) < LARGEST] for t in trained}
        self.not_finite = {client: names for client, names in found.items() if names}
        terms = {name for result in trained for name in result.losses}
        for name in sorted(terms):
            with_term = [t for t in trained if name in t.losses]
            samples = sum(t.samples for t in with_term)
            whole = not any(name in names for names in self.not_finite.values())
            total = sum(t.losses[name] * t.samples for t in with_term) if whole else math.nan
            self.losses[name] = total / max(samples, 1)
        if self.losses:
            self.losses["total"] = sum(value for value in self.losses.values() if value is not None)
        self.losses = _finite(self.losses)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain values for JSON, numbers that files cannot have replaced by None."""
        record: dict[str, Any] = {"round": self.round, "participants": self.participants}
        record |= {n: accuracy.to_dict() for n in SCORED if (accuracy := getattr(self, n))}
        if findings := self.robust.to_dict():
            record["robust"] = findings
        if self.attack:
            record["attack"] = vars(self.attack)
        if self.privacy:
            record["privacy"] = self.privacy.to_dict()
        if self.not_finite:
            record["not_finite"] = self.not_finite
        record |= {n: getattr(self, n) for n in ("losses", "bytes", "parameters", "seconds")}
        record |= {n: [vars(entry) for entry in getattr(self, n)] for n in ("refused", "missing")}
        record |= {"attempts": self.attempts, "diagnostics": self.diagnostics}
        result: dict[str, Any] = _finite(record)
        return result

    @classmethod
    def from_dict(cls, value: Any, where: str) -> RoundRecord:
        """Return the record that :meth:`to_dict` wrote."""
        if not isinstance(value, dict) or "round" not in value:
            raise CheckpointError(f"{where} is not the record of a round")
        line: _Record = decode(value, _Record, where)
        parts = {name: getattr(line, name) for name in line.__struct_fields__}
        parts |= {name: Accuracy.read(parts[name]) for name in SCORED if parts[name] is not None}
        return cls(**{**parts, "robust": line.robust.read()})


class _Record(Struct):
    """A line of ``rounds.jsonl``; what has a default may be missing."""

    round: Ordinal
    participants: list[str]
    losses: dict[str, Number | None]
    bytes: Ways
    parameters: Ways
    seconds: Seconds
    refused: list[Refusal]
    diagnostics: dict[str, Any]
    accuracy: _Scored | None = None
    validation: _Scored | None = None
    union: _Scored | None = None
    unseen: _Scored | None = None
    newcomers: _Scored | None = None
    not_finite: dict[str, list[str]] = {}
    missing: list[Absence] = []
    attempts: Ordinal = 1
    robust: WrittenFindings = WrittenFindings()
    attack: Attack | None = None
    privacy: Spent | None = None

    def __post_init__(self) -> None:
        if not all(map(str.isprintable, self.not_finite)):
            raise ValueError("not_finite: a client's name has control characters")


def _spread(clients: Sequence[float | None]) -> tuple[float, float]:
    """Return mean and population standard deviation of the accuracies that are known; zeros if none is."""
    values = [a for a in clients if a is not None]
    return (statistics.fmean(values), statistics.pstdev(values)) if values else (0.0, 0.0)


def _finite(value: Any) -> Any:
    """Replace numbers that files cannot have by None."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not abs(value) < LARGEST:
        return None
    return value
