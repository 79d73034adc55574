"""The summary of a finished run, ``summary.json``, written and read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from protofed.errors import CheckpointError
from protofed.runs.checks import is_count, is_number, is_text
from protofed.runs.records import SECONDS, WAYS, RoundRecord


@dataclass(frozen=True)
class RuleOutcome:
    """Accuracy by one inference rule, in fractions.

    Attributes:
        best: Of the best round *on the test data*, which is what the papers print and is optimistic; weighted by
            test samples.
        best_round: That round.
        final: Of the last evaluated round, weighted by test samples.
        client_mean: Unweighted mean over clients in that round.
        client_std: Standard deviation over clients in that round.
        selected: With a validation split, on the test data in the round that is best on the validation data.
        selected_round: That round.
    """

    best: float
    best_round: int
    final: float
    client_mean: float
    client_std: float
    selected: float | None = None
    selected_round: int | None = None

    @classmethod
    def of(cls, evaluated: Sequence[RoundRecord], rule: str) -> RuleOutcome:
        """Return the outcome of one inference rule.

        Args:
            evaluated: Records of the rounds that were evaluated, ascending.
            rule: The rule, by which all of them were.
        """
        weighted = {r.round: r.accuracy.weighted[rule] for r in evaluated if r.accuracy}
        best = max(weighted, key=weighted.__getitem__)
        final = evaluated[-1]
        assert final.accuracy is not None
        validated = {r.round: r.validation.weighted[rule] for r in evaluated if r.validation}
        selected = max(validated, key=validated.__getitem__) if validated else None
        return cls(
            weighted[best],
            best,
            weighted[final.round],
            *final.accuracy.spreads[rule],
            None if selected is None else weighted[selected],
            selected,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain values, without what is not known."""
        return {name: value for name, value in vars(self).items() if value is not None}

    @classmethod
    def from_dict(cls, value: Any, where: str) -> RuleOutcome:
        """Return the outcome that :meth:`to_dict` wrote.

        Args:
            value: Anything.
            where: What errors begin with.

        Raises:
            CheckpointError: If ``value`` is something else.
        """
        table = value if isinstance(value, dict) else {}
        numbers: dict[str, Any] = {name: table.get(name) for name in ("best", "final", "client_mean", "client_std")}
        rounds: dict[str, Any] = {"best_round": table.get("best_round")}
        if "selected" in table or "selected_round" in table:
            numbers["selected"], rounds["selected_round"] = table.get("selected"), table.get("selected_round")
        if not all(map(is_number, numbers.values())) or not all(is_count(n, least=1) for n in rounds.values()):
            raise CheckpointError(f"{where} should have best, best_round, final, client_mean and client_std")
        return cls(**numbers, **rounds)


@dataclass(frozen=True)
class Traffic:
    """Traffic of all parties together, by direction: ``up`` and ``down``.

    Attributes:
        parameters_per_round: Mean over the rounds that sent any, counted as papers do.
        bytes_total: Bytes of all encoded messages.
    """

    parameters_per_round: dict[str, float]
    bytes_total: dict[str, int]

    @property
    def sent(self) -> int:
        """Bytes in both directions."""
        return self.bytes_total["up"] + self.bytes_total["down"]

    @classmethod
    def of(cls, rounds: Sequence[RoundRecord]) -> Traffic:
        """Return the traffic of some rounds."""
        parameters = {way: [r.parameters[way] for r in rounds if r.parameters[way]] for way in WAYS}
        return cls(
            {way: sum(numbers) / len(numbers) if numbers else 0 for way, numbers in parameters.items()},
            {way: sum(r.bytes[way] for r in rounds) for way in WAYS},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the traffic as plain values."""
        return {
            name: value
            for way in WAYS
            for name, value in (
                (f"parameters_{way}_per_round", self.parameters_per_round[way]),
                (f"bytes_{way}_total", self.bytes_total[way]),
            )
        }

    @classmethod
    def from_dict(cls, value: Any, where: str) -> Traffic:
        """Return the traffic that :meth:`to_dict` wrote.

        Args:
            value: Anything.
            where: What errors begin with.

        Raises:
            CheckpointError: If ``value`` is something else.
        """
        table = value if isinstance(value, dict) else {}
        parameters: dict[str, Any] = {way: table.get(f"parameters_{way}_per_round") for way in WAYS}
        bytes: dict[str, Any] = {way: table.get(f"bytes_{way}_total") for way in WAYS}
        if not all(map(is_number, parameters.values())) or not all(is_count(n, most=2**63) for n in bytes.values()):
            raise CheckpointError(f"{where} should have parameters per round and bytes in total, up and down")
        return cls(parameters, bytes)


@dataclass(frozen=True)
class Outcome:
    """Accuracy, communication and time of a run, computed from its rounds.

    Attributes:
        rounds: How many were run.
        accuracy: By inference rule, in the method's order; empty before the first evaluation.
        communication: What was sent.
        seconds: Sum over the rounds of each of :data:`~protofed.runs.records.SECONDS`.
        refused: How many uploads were refused.
    """

    rounds: int
    accuracy: dict[str, RuleOutcome]
    communication: Traffic
    seconds: dict[str, float]
    refused: int

    @classmethod
    def of(cls, rounds: Sequence[RoundRecord]) -> Outcome:
        """Return the outcome of the rounds so far."""
        evaluated = [r for r in rounds if r.accuracy]
        rules = list(evaluated[-1].accuracy.weighted) if evaluated and evaluated[-1].accuracy else []
        return cls(
            len(rounds),
            {rule: RuleOutcome.of(evaluated, rule) for rule in rules},
            Traffic.of(rounds),
            {name: sum(r.seconds[name] for r in rounds) for name in SECONDS},
            sum(len(r.refused) for r in rounds),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain values."""
        return {
            "rounds": self.rounds,
            "accuracy": {rule: outcome.to_dict() for rule, outcome in self.accuracy.items()},
            "communication": self.communication.to_dict(),
            "seconds": self.seconds,
            "refused": self.refused,
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any], where: str) -> Outcome:
        """Return the outcome that :meth:`to_dict` wrote.

        Args:
            value: A table, which may hold more.
            where: What errors begin with.

        Raises:
            CheckpointError: If one of the parts is missing or of another kind.
        """
        for name in ("rounds", "refused"):
            if not is_count(value.get(name)):
                raise CheckpointError(f"{where}: {name} should be a whole number")
        for name in ("accuracy", "seconds"):
            if not isinstance(value.get(name), dict):
                raise CheckpointError(f"{where}: {name} should be a table")
        if not all(is_number(value["seconds"].get(name)) for name in SECONDS):
            raise CheckpointError(f"{where}: seconds should have training, aggregation, evaluation and total")
        return cls(
            value["rounds"],
            {
                rule: RuleOutcome.from_dict(part, f"{where}: accuracy.{rule}")
                for rule, part in value["accuracy"].items()
            },
            Traffic.from_dict(value.get("communication"), f"{where}: communication"),
            {name: value["seconds"][name] for name in SECONDS},
            value["refused"],
        )


@dataclass(frozen=True)
class Summary:
    """The summary of a finished run.

    Attributes:
        protofed: Version that ran it.
        recipe: Name of the recipe.
        method: Name of the method.
        exchanges: What the method lets cross the network; ``""`` in files of the first version.
        seed: The experiment's seed.
        clients: How many there were.
        outcome: Accuracy, communication and time.
        peak_memory_bytes: The most memory that the process took; None if that is not known.
        environment: Versions, device and settings that numbers may depend on.
        label: What figures and tables call the method; ``""`` for its name.
    """

    protofed: str
    recipe: str
    method: str
    exchanges: str
    seed: int
    clients: int
    outcome: Outcome
    peak_memory_bytes: int | None
    environment: dict[str, Any] = field(default_factory=dict)
    label: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``summary.json``."""
        return {
            "protofed": self.protofed,
            "recipe": self.recipe,
            "method": self.method,
            **({"exchanges": self.exchanges} if self.exchanges else {}),
            "seed": self.seed,
            "clients": self.clients,
            **self.outcome.to_dict(),
            "peak_memory_bytes": self.peak_memory_bytes,
            "environment": self.environment,
            **({"label": self.label} if self.label else {}),
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any], where: str) -> Summary:
        """Return the summary that :meth:`to_dict` wrote, in this version or an older one.

        Args:
            value: A table.
            where: What errors begin with.

        Raises:
            CheckpointError: If a part of ``value`` is missing or of another kind.
        """
        texts: dict[str, Any] = {
            n: value.get(n) or "" for n in ("label", "protofed", "recipe", "method", "exchanges")
        }
        for name, text in texts.items():
            if not is_text(text):
                raise CheckpointError(f"{where}: {name} should be a text without control characters")
        numbers: dict[str, Any] = {n: value.get(n, 0) for n in ("seed", "clients")}
        for name, number in numbers.items():
            if not is_count(number, most=2**63):
                raise CheckpointError(f"{where}: {name} should be a whole number")
        environment, memory = value.get("environment", {}), value.get("peak_memory_bytes")
        if not isinstance(environment, dict):
            raise CheckpointError(f"{where}: environment should be a table")
        if memory is not None and not is_number(memory):
            raise CheckpointError(f"{where}: peak_memory_bytes should be a number")
        return cls(
            **texts,
            **numbers,
            outcome=Outcome.from_dict(value, where),
            peak_memory_bytes=memory,
            environment=environment,
        )
