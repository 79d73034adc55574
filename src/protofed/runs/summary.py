"""The summary of a finished run, ``summary.json``, written and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from itertools import takewhile
from typing import Any

from msgspec import Struct

from protofed.runs.records import SECONDS, WAYS, Accuracy, RoundRecord, Seconds
from protofed.runs.spent import Spent
from protofed.untrusted.decoding import Count, Large, Line, Number, Ordinal, decode

TOLERANCE = 0.01  #: Tolerance below the best mean accuracy that counts as converged: one percentage point


@dataclass(frozen=True)
class Beyond:
    """Accuracy by one inference rule on other samples than the clients' own, in fractions."""

    #: Over all clients' answers, in that of the rounds with such scores which is best on the clients' own test
    #: samples
    best: Number
    #: The same of the last round with such scores: of a run that ended before the planned last one, as
    #: ``evaluation.patience`` lets it, not always the last evaluated
    final: Number
    client_mean: Number  #: Unweighted, in that round
    client_std: Number  #: Over clients, in that round

    @classmethod
    def of(cls, evaluated: Sequence[RoundRecord], part: str, rule: str) -> Beyond | None:
        """Return the outcome of one inference rule; None if clients were not scored on such samples."""
        found = {r.round: getattr(r, part) for r in evaluated}
        parts: dict[int, Accuracy] = {t: a for t, a in found.items() if a and rule in a.weighted}
        if not parts:
            return None
        final = parts[max(parts)]
        own = {r.round: r.accuracy.weighted[rule] for r in evaluated if r.accuracy and r.round in parts}
        best = parts[max(own, key=own.__getitem__)]
        return cls(best.weighted[rule], final.weighted[rule], *final.spreads[rule])


@dataclass(frozen=True)
class RuleOutcome:
    """Accuracy by one inference rule, in fractions; what is None is not known."""

    _: KW_ONLY
    #: With a validation split, on the test data in the round that is best on the validation data
    best_validated: Number | None = None
    best_validated_round: Ordinal | None = None
    #: Of the best round *on the test data*, which is what the papers print and is optimistic; weighted by test
    #: samples
    best: Number
    best_round: Ordinal
    best_client_mean: Number | None = None  #: Unweighted mean over clients in that round
    best_client_std: Number | None = None  #: Standard deviation over clients (of the population) in that round
    final: Number  #: Of the last evaluated round, weighted by test samples
    client_mean: Number  #: Unweighted mean over clients in the last evaluated round
    client_std: Number  #: Standard deviation over clients in that round
    #: First evaluated round from which on the mean over clients stays within :data:`TOLERANCE` of its best; None if
    #: the last round is worse than that
    rounds_to_convergence: Ordinal | None = None
    union: Beyond | None = None  #: On all clients' test samples
    unseen: Beyond | None = None  #: On those of them whose classes a client has no training samples of
    newcomers: Beyond | None = None  #: Of the clients that joined after training, on their own test samples

    @classmethod
    def of(cls, evaluated: Sequence[RoundRecord], rule: str) -> RuleOutcome:
        """Return the outcome of one inference rule."""
        scored = {r.round: r.accuracy for r in evaluated if r.accuracy}
        weighted = {round_number: accuracy.weighted[rule] for round_number, accuracy in scored.items()}
        best, final = max(weighted, key=weighted.__getitem__), evaluated[-1]
        validated = {r.round: r.validation.weighted[rule] for r in evaluated if r.validation}
        chosen = max(validated, key=validated.__getitem__) if validated else None
        best_mean, best_std = scored[best].spreads[rule]
        mean, std = scored[final.round].spreads[rule]
        return cls(
            best_validated=None if chosen is None else weighted[chosen],
            best_validated_round=chosen,
            best=weighted[best],
            best_round=best,
            best_client_mean=best_mean,
            best_client_std=best_std,
            final=weighted[final.round],
            client_mean=mean,
            client_std=std,
            rounds_to_convergence=_find_convergence(
                {round_number: a.spreads[rule][0] for round_number, a in scored.items()}
            ),
            **{part: Beyond.of(evaluated, part, rule) for part in _BEYOND},
        )

    def figure(self, name: str) -> float | None:
        """Return an attribute, of :class:`Beyond` its ``final``; None if it is not known."""
        value: float | Beyond | None = getattr(self, name)
        return value.final if isinstance(value, Beyond) else value

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain values, without what is not known."""
        known = {name: value for name, value in vars(self).items() if value is not None}
        return {name: vars(value) if isinstance(value, Beyond) else value for name, value in known.items()}

    def __post_init__(self) -> None:
        for one, other in _PAIRS:
            if (getattr(self, one) is None) != (getattr(self, other) is None):
                raise ValueError(f"{one} and {other} belong together")


_PAIRS = (("best_validated", "best_validated_round"), ("best_client_mean", "best_client_std"))
_BEYOND = ("union", "unseen", "newcomers")
_FORMER = {"selected": "best_validated", "selected_round": "best_validated_round"}  #: Names in older files


def _find_convergence(means: Mapping[int, float]) -> int | None:
    """Return the first round from which on accuracies stay near the best one; None if the last round's is not.

    FedProto prints "communication rounds required for convergence" (Table 1) without a definition.
    """
    low = max(means.values()) - TOLERANCE
    kept = list(takewhile(lambda round_number: means[round_number] >= low, sorted(means, reverse=True)))
    return kept[-1] if kept else None


@dataclass(frozen=True)
class Traffic:
    """Traffic of all parties together, by direction: ``up`` and ``down``."""

    parameters_per_round: dict[str, float]  #: Mean over the rounds that sent any, counted as papers do
    bytes_total: dict[str, int]  #: All encoded messages
    parameters_over_all_rounds: dict[str, float] | None = None  #: Mean over all rounds; None in older files

    @property
    def sent(self) -> int:
        """Bytes in both directions."""
        return self.bytes_total["up"] + self.bytes_total["down"]

    @classmethod
    def of(cls, rounds: Sequence[RoundRecord]) -> Traffic:
        """Return the traffic of some rounds."""
        parameters = {way: [r.parameters[way] for r in rounds] for way in WAYS}
        return cls(
            {way: sum(sent) / max(1, sum(map(bool, sent))) for way, sent in parameters.items()},
            {way: sum(r.bytes[way] for r in rounds) for way in WAYS},
            {way: sum(sent) / max(1, len(sent)) for way, sent in parameters.items()},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the traffic as plain values."""
        overall = self.parameters_over_all_rounds
        return {
            name: value
            for way in WAYS
            for name, value in (
                (f"parameters_{way}_per_round", self.parameters_per_round[way]),
                *([(f"parameters_{way}_over_all_rounds", overall[way])] if overall else []),
                (f"bytes_{way}_total", self.bytes_total[way]),
            )
        }


@dataclass(frozen=True)
class Outcome:
    """Accuracy, communication and time of a run, computed from its rounds."""

    rounds: int
    accuracy: dict[str, RuleOutcome]  #: By inference rule, in the method's order; empty before the first evaluation
    communication: Traffic
    seconds: dict[str, float]  #: Sum over the rounds of each of :data:`~protofed.runs.records.SECONDS`
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


@dataclass(frozen=True)
class Summary:
    """The summary of a finished run."""

    protofed: str
    recipe: str
    method: str
    exchanges: str  #: In words; ``""`` in files of the first version
    seed: int
    clients: int
    outcome: Outcome
    peak_memory_bytes: int | None  #: None if unknown
    #: Versions, device and settings that numbers may depend on
    environment: dict[str, Any] = field(default_factory=dict)
    label: str = ""  #: Of figures and tables; ``""`` for the method's name
    main_rule: str = ""  #: ``""`` in older files
    privacy: Spent | None = None  #: Cost of differential privacy

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``summary.json``."""
        return {
            "protofed": self.protofed,
            "recipe": self.recipe,
            "method": self.method,
            **({"exchanges": self.exchanges} if self.exchanges else {}),
            "seed": self.seed,
            "clients": self.clients,
            **({"main_rule": self.main_rule} if self.main_rule else {}),
            **self.outcome.to_dict(),
            "peak_memory_bytes": self.peak_memory_bytes,
            "environment": self.environment,
            **({"label": self.label} if self.label else {}),
            **({"privacy": self.privacy.to_dict()} if self.privacy else {}),
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any], where: str) -> Summary:
        """Return the summary that :meth:`to_dict` wrote, in this version or an older one."""
        known = {name: part for name, part in value.items() if part is not None}
        if isinstance(rules := known.get("accuracy"), dict):
            known["accuracy"] = {
                rule: {_FORMER.get(n, n): v for n, v in part.items()} if isinstance(part, dict) else part
                for rule, part in rules.items()
            }
        found = decode(known, _Written, where)
        parts = {name: getattr(found, name) for name in found.__struct_fields__}
        outcome = {f.name: parts.pop(f.name) for f in fields(Outcome)}
        return cls(**parts, outcome=Outcome(**{**outcome, "communication": found.communication.read()}))


class _WrittenTraffic(Struct):
    parameters_up_per_round: Number
    parameters_down_per_round: Number
    bytes_up_total: Large
    bytes_down_total: Large
    parameters_up_over_all_rounds: Number | None = None
    parameters_down_over_all_rounds: Number | None = None

    def __post_init__(self) -> None:
        if (self.parameters_up_over_all_rounds is None) != (self.parameters_down_over_all_rounds is None):
            raise ValueError("parameters over all rounds should be there up and down")

    def read(self) -> Traffic:
        """Undo :meth:`Traffic.to_dict`."""
        up, down = self.parameters_up_over_all_rounds, self.parameters_down_over_all_rounds
        return Traffic(
            {"up": self.parameters_up_per_round, "down": self.parameters_down_per_round},
            {"up": self.bytes_up_total, "down": self.bytes_down_total},
            None if up is None or down is None else {"up": up, "down": down},
        )


class _Written(Struct):
    """The content of ``summary.json``; what has a default was not written by all versions."""

    rounds: Count
    accuracy: dict[str, RuleOutcome]
    communication: _WrittenTraffic
    seconds: Seconds
    refused: Count
    protofed: Line = ""
    recipe: Line = ""
    method: Line = ""
    exchanges: Line = ""
    label: Line = ""
    main_rule: Line = ""
    seed: Large = 0
    clients: Large = 0
    environment: dict[str, Any] = {}
    peak_memory_bytes: Large | None = None
    privacy: Spent | None = None
