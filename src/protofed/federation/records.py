"""What is recorded of a round: one line of ``rounds.jsonl``."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protofed.errors import DivergedError, PayloadError
from protofed.training import Missing, Trained


@dataclass(frozen=True)
class Accuracy:
    """Accuracies of one evaluation, per rule.

    Attributes:
        weighted: Correct over all samples of all clients.
        clients: One accuracy per client in their fixed order; None for a client without samples.
    """

    weighted: dict[str, float]
    clients: dict[str, list[float | None]]

    @classmethod
    def of(cls, results: Sequence[tuple[Mapping[str, float], int]], rules: Sequence[str]) -> Accuracy:
        """Return the accuracies of ``(correct per rule, samples)`` for each client."""
        total = sum(samples for _, samples in results)
        weighted = {
            rule: sum(correct.get(rule, 0) for correct, _ in results) / total if total else 0.0 for rule in rules
        }
        clients = {rule: [c[rule] / n if n else None for c, n in results] for rule in rules}
        return cls(weighted, clients)

    def spread(self, rule: str) -> tuple[float, float]:
        """Return the unweighted mean over clients and the (population) standard deviation."""
        values = [a for a in self.clients[rule] if a is not None]
        if not values:
            return 0.0, 0.0
        return statistics.fmean(values), statistics.pstdev(values)

    def to_dict(self) -> dict[str, Any]:
        """Return the accuracies as plain values."""
        return {
            rule: {
                "weighted": weighted,
                "client_mean": self.spread(rule)[0],
                "client_std": self.spread(rule)[1],
                "clients": self.clients[rule],
            }
            for rule, weighted in self.weighted.items()
        }


@dataclass
class RoundRecord:
    """One round.

    Attributes:
        round: Counted from 1.
        participants: Clients that trained.
        accuracy: On the test data, or None if not evaluated.
        validation: On the validation data, or None.
        losses: Mean per training sample, per term, and their ``total``; None where not finite.
        bytes: Encoded size of all messages, ``up`` and ``down``.
        parameters: Numbers sent as the papers count them, ``up`` and ``down``.
        seconds: ``training``, ``aggregation``, ``evaluation`` and ``total``.
        refused: Uploads that broke their schema: client, field, reason, and whether its numbers had diverged.
        missing: Clients that gave no result: client, phase (``training`` or ``evaluation``) and reason.
        attempts: How often the round was begun, because too few clients had answered.
        robust: What the robust stage changed or left out (see :class:`~protofed.robust.Findings`), and under
            ``kept`` why the server kept its old state, if it did.
        attack: In a simulation with hostile clients: who they are, the accuracy of honest ones by rule, and how
            often a backdoor works.
        diagnostics: What the method measured.
    """

    round: int
    participants: list[str]
    accuracy: Accuracy | None = None
    validation: Accuracy | None = None
    losses: dict[str, float | None] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    parameters: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})
    seconds: dict[str, float] = field(
        default_factory=lambda: {"training": 0.0, "aggregation": 0.0, "evaluation": 0.0, "total": 0.0}
    )
    refused: list[dict[str, Any]] = field(default_factory=list)
    missing: list[dict[str, str]] = field(default_factory=list)
    attempts: int = 1
    robust: dict[str, Any] = field(default_factory=dict)
    attack: dict[str, Any] = field(default_factory=dict)
    diagnostics: dict[str, Any] = field(default_factory=dict)

    def add_traffic(self, direction: str, bytes: int, parameters: int) -> None:
        """Count one message, ``up`` or ``down``."""
        self.bytes[direction] += bytes
        self.parameters[direction] += parameters

    def refuse(self, client: str, error: PayloadError) -> None:
        """Note an upload that was left out; ``error`` reads ``field: reason``."""
        name, _, reason = str(error).partition(": ")
        diverged = isinstance(error, DivergedError)
        self.refused.append({"client": client, "field": name, "reason": reason, "diverged": diverged})

    def miss(self, missing: Missing, phase: str) -> None:
        """Note a client that gave no result."""
        self.missing.append({"client": missing.client, "phase": phase, "reason": missing.reason})

    def set_losses(self, trained: Sequence[Trained]) -> None:
        """Average the clients' losses, weighted by their numbers of samples."""
        terms = {name for result in trained for name in result.losses}
        for name in sorted(terms):
            with_term = [t for t in trained if name in t.losses]
            samples = sum(t.samples for t in with_term)
            self.losses[name] = sum(t.losses[name] * t.samples for t in with_term) / max(samples, 1)
        if self.losses:
            self.losses["total"] = sum(value for value in self.losses.values() if value is not None)

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain values for JSON."""
        record: dict[str, Any] = {"round": self.round, "participants": self.participants}
        if self.accuracy:
            record["accuracy"] = self.accuracy.to_dict()
        if self.validation:
            record["validation"] = self.validation.to_dict()
        record |= {n: value for n in ("robust", "attack") if (value := getattr(self, n))}
        rest = {n: getattr(self, n) for n in ("losses", "bytes", "parameters", "seconds")}
        rest |= {n: getattr(self, n) for n in ("refused", "missing", "attempts", "diagnostics")}
        result: dict[str, Any] = _finite(record | rest)
        return result


def _finite(value: Any) -> Any:
    """Replace numbers that JSON does not know by None."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    if isinstance(value, float) and not -float("inf") < value < float("inf"):
        return None
    return value
