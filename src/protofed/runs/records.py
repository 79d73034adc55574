"""The record of a round: one line of ``rounds.jsonl``, written and read."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from protofed.errors import CheckpointError, DivergedError, PayloadError
from protofed.runs.checks import are_named_numbers, are_numbers, are_tables, are_texts, is_count, is_number, is_text
from protofed.runs.findings import Findings
from protofed.runs.spent import Spent

if TYPE_CHECKING:
    from protofed.visits import Missing, Trained

WAYS = ("up", "down")
"""Directions of traffic: from clients to the server, and back."""

SECONDS = ("total", "training", "evaluation", "aggregation")
"""The total time of a round, and its parts."""

SCORED = ("accuracy", "validation", "union", "unseen", "newcomers")
"""The data on which a round may have scored clients."""

_PARTS = {
    "participants": list,
    "losses": dict,
    "bytes": dict,
    "parameters": dict,
    "seconds": dict,
    "refused": list,
    "diagnostics": dict,
}
"""Parts that every record has had since the first version."""


@dataclass(frozen=True)
class Accuracy:
    """Accuracies of one evaluation, per inference rule.

    Attributes:
        weighted: Correct over all samples of all clients.
        clients: One accuracy per client in their fixed order; None for a client without samples.
        spreads: Unweighted mean over clients, and the (population) standard deviation.
    """

    weighted: dict[str, float]
    clients: dict[str, list[float | None]]
    spreads: dict[str, tuple[float, float]]

    @classmethod
    def of(cls, results: Sequence[tuple[Mapping[str, float], int]], rules: Sequence[str]) -> Accuracy:
        """Return the accuracies of one evaluation.

        Args:
            results: For each client, correct answers per rule, and its number of samples.
        """
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
    def from_dict(cls, value: Any, where: str) -> Accuracy:
        """Return the accuracies that :meth:`to_dict` wrote.

        Args:
            where: What errors begin with.

        Raises:
            CheckpointError: If ``value`` is something else.
        """
        if not isinstance(value, dict) or not value or not all(_is_accuracy(rule) for rule in value.values()):
            raise CheckpointError(f"{where} should have weighted, client_mean, client_std and clients per rule")
        return cls(
            {rule: part["weighted"] for rule, part in value.items()},
            {rule: part["clients"] for rule, part in value.items()},
            {rule: (part["client_mean"], part["client_std"]) for rule, part in value.items()},
        )


@dataclass(frozen=True)
class Refusal:
    """An upload that broke its schema.

    Attributes:
        client: The sender.
        field: The part that broke the schema.
        reason: How it broke the schema.
        diverged: Whether its numbers were not finite or too large.
    """

    client: str
    field: str
    reason: str
    diverged: bool = False


@dataclass(frozen=True)
class Absence:
    """A client that gave no result.

    Attributes:
        client: Its name.
        phase: ``training``, ``aggregation`` (of masked uploads) or ``evaluation``.
        reason: Why there is no result.
    """

    client: str
    phase: str
    reason: str


@dataclass(frozen=True)
class Attack:
    """Hostile clients of a simulation.

    Attributes:
        clients: Their names.
        honest: Accuracy of the other clients, by rule.
        success: By rule, how often a backdoor works; empty without one.
    """

    clients: list[str]
    honest: dict[str, float] = field(default_factory=dict)
    success: dict[str, float] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, value: Any, where: str) -> Attack:
        """Return what a record says of an attack.

        Args:
            where: What errors begin with.

        Raises:
            CheckpointError: If ``value`` is something else.
        """
        table = value if isinstance(value, dict) else {}
        clients, honest, success = table.get("clients", []), table.get("honest", {}), table.get("success", {})
        if not isinstance(value, dict) or not are_texts(clients):
            raise CheckpointError(f"{where} should name its clients")
        if not are_named_numbers(honest) or not are_named_numbers(success):
            raise CheckpointError(f"{where}: honest and success should be numbers")
        return cls(clients, honest, success)


@dataclass
class RoundRecord:
    """One round.

    Attributes:
        round: Counted from 1.
        participants: Clients that trained.
        accuracy: On the test data, or None if not evaluated.
        validation: On the validation data, or None.
        union: Of every client on all clients' test samples, or None.
        unseen: On those of them whose classes the client has no training samples of, or None.
        newcomers: Of the clients that joined after training, on their own test data, or None.
        losses: Mean per training sample, per term, and their ``total``; None where not finite.
        not_finite: The terms that were not finite first, by client; only those clients.
        bytes: Encoded size of all messages, ``up`` and ``down``.
        parameters: Numbers sent as the papers count them, ``up`` and ``down``.
        seconds: Time of each of :data:`SECONDS`.
        refused: Uploads that broke their schema.
        missing: Clients that gave no result.
        attempts: How often the round was begun, because too few clients had answered.
        robust: What the robust stage changed or left out.
        attack: The hostile clients of a simulation that has any.
        privacy: What differential privacy has cost so far, or None without it.
        diagnostics: What the method measured.
    """

    round: int
    participants: list[str]
    accuracy: Accuracy | None = None
    validation: Accuracy | None = None
    union: Accuracy | None = None
    unseen: Accuracy | None = None
    newcomers: Accuracy | None = None
    losses: dict[str, float | None] = field(default_factory=dict)
    not_finite: dict[str, list[str]] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    parameters: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    seconds: dict[str, float] = field(
        default_factory=lambda: {"training": 0.0, "aggregation": 0.0, "evaluation": 0.0, "total": 0.0}
    )
    refused: list[Refusal] = field(default_factory=list)
    missing: list[Absence] = field(default_factory=list)
    attempts: int = 1
    robust: Findings = field(default_factory=Findings)
    attack: Attack | None = None
    privacy: Spent | None = None
    diagnostics: dict[str, Any] = field(default_factory=dict)

    @property
    def sent(self) -> int:
        """Bytes of all messages in both directions."""
        return self.bytes["up"] + self.bytes["down"]

    def add_traffic(self, direction: str, bytes: int, parameters: int) -> None:
        """Count one message.

        Args:
            direction: ``up`` or ``down``.
            parameters: The numbers in it, as the papers count them.
        """
        self.bytes[direction] += bytes
        self.parameters[direction] += parameters

    def refuse(self, client: str, error: PayloadError) -> None:
        """Note an upload that was left out.

        Args:
            error: Why; it reads ``field: reason``.
        """
        name, _, reason = str(error).partition(": ")
        self.refused.append(Refusal(client, name, reason, isinstance(error, DivergedError)))

    def miss(self, missing: Missing, phase: str) -> None:
        """Note a client that gave no result.

        Args:
            missing: The client, and why there is no result.
            phase: ``training`` or ``evaluation``.
        """
        self.lose(missing.client, missing.reason, phase)

    def lose(self, client: str, reason: str, phase: str) -> None:
        """Note a client that gave no result.

        Args:
            reason: Why there is no result.
            phase: ``training``, ``aggregation`` or ``evaluation``.
        """
        self.missing.append(Absence(client, phase, reason))

    def set_losses(self, trained: Sequence[Trained]) -> None:
        """Average the clients' losses, weighted by their numbers of samples, and note those that are not finite."""
        found = {t.client: [name for name, loss in t.losses.items() if not math.isfinite(loss)] for t in trained}
        self.not_finite = {client: names for client, names in found.items() if names}
        terms = {name for result in trained for name in result.losses}
        for name in sorted(terms):
            with_term = [t for t in trained if name in t.losses]
            samples = sum(t.samples for t in with_term)
            self.losses[name] = sum(t.losses[name] * t.samples for t in with_term) / max(samples, 1)
        if self.losses:
            self.losses["total"] = sum(value for value in self.losses.values() if value is not None)
        self.losses = _finite(self.losses)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain values for JSON, numbers that JSON does not know replaced by None."""
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
        """Return the record that :meth:`to_dict` wrote, in this version or an older one.

        Args:
            where: What errors begin with.

        Raises:
            CheckpointError: If ``value`` is no such record, or one of its parts is missing or of another kind.
        """
        if not isinstance(value, dict) or not is_count(value.get("round"), least=1):
            raise CheckpointError(f"{where} is not the record of a round")
        for name, kind in _PARTS.items():
            if name not in value:
                raise CheckpointError(f"{where} lacks {name!r}")
            if not isinstance(value[name], kind):
                raise CheckpointError(f"{where}: {name} should be a {'list' if kind is list else 'table'}")
        for name in ("bytes", "parameters"):
            if not all(is_count(value[name].get(way)) for way in WAYS):
                raise CheckpointError(f"{where}: {name} should count up and down")
        if not all(is_number(value["seconds"].get(name)) for name in SECONDS):
            raise CheckpointError(f"{where}: seconds should have training, aggregation, evaluation and total")
        if not are_named_numbers(value["losses"]):
            raise CheckpointError(f"{where}: losses should be numbers")
        unsound = value.get("not_finite", {})
        if not isinstance(unsound, dict) or not all(is_text(c) and are_texts(n) for c, n in unsound.items()):
            raise CheckpointError(f"{where}: not_finite should list loss terms by client")
        if not are_texts(value["participants"]):
            raise CheckpointError(f"{where}: participants should be names")
        refused, missing = value["refused"], value.get("missing", [])
        if not are_tables(refused, ["client", "field", "reason"]):
            raise CheckpointError(f"{where}: a refusal should name client, field and reason")
        if not all(isinstance(entry.get("diverged", False), bool) for entry in refused):
            raise CheckpointError(f"{where}: diverged should be true or false")
        if not are_tables(missing, ["client", "phase", "reason"]):
            raise CheckpointError(f"{where}: a missing client's entry should name client, phase and reason")
        attempts = value.get("attempts", 1)
        if not is_count(attempts, least=1):
            raise CheckpointError(f"{where}: attempts should be a whole number")
        return cls(
            round=value["round"],
            participants=value["participants"],
            **{n: Accuracy.from_dict(value[n], f"{where}: {n}") for n in SCORED if n in value},
            losses=value["losses"],
            not_finite=unsound,
            bytes={way: value["bytes"][way] for way in WAYS},
            parameters={way: value["parameters"][way] for way in WAYS},
            seconds=value["seconds"],
            refused=[Refusal(e["client"], e["field"], e["reason"], e.get("diverged", False)) for e in refused],
            missing=[Absence(e["client"], e["phase"], e["reason"]) for e in missing],
            attempts=attempts,
            robust=Findings.from_dict(value.get("robust", {}), f"{where}: robust"),
            attack=Attack.from_dict(value["attack"], f"{where}: attack") if "attack" in value else None,
            privacy=Spent.from_dict(value["privacy"], f"{where}: privacy") if "privacy" in value else None,
            diagnostics=value["diagnostics"],
        )


def _spread(clients: Sequence[float | None]) -> tuple[float, float]:
    """Return mean and population standard deviation of the accuracies that are known; zeros if none is."""
    values = [a for a in clients if a is not None]
    return (statistics.fmean(values), statistics.pstdev(values)) if values else (0.0, 0.0)


def _is_accuracy(rule: Any) -> bool:
    return (
        isinstance(rule, dict)
        and all(is_number(rule.get(name)) for name in ("weighted", "client_mean", "client_std"))
        and are_numbers(rule.get("clients"))
    )


def _finite(value: Any) -> Any:
    """Replace numbers that JSON does not know by None."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return None
    return value
