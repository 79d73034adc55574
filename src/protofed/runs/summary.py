"""The summary of a finished run, ``summary.json``, written and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from protofed.errors import CheckpointError
from protofed.runs.records import SECONDS, WAYS, Accuracy, RoundRecord
from protofed.runs.spent import Spent
from protofed.untrusted.decoding import Count, Large, Line, Number, Ordinal, decode

if TYPE_CHECKING:
    Times = dict[str, float]
else:
    from protofed.runs.records import Seconds as Times

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
    best_client_mean: Number  #: Unweighted mean over clients in that round
    best_client_std: Number  #: Standard deviation over clients (of the population) in that round
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
        if (self.best_validated is None) != (self.best_validated_round is None):
            raise ValueError("best_validated and best_validated_round belong together")


_BEYOND = ("union", "unseen", "newcomers")


def _find_convergence(means: Mapping[int, float]) -> int | None:
    """Return the first round from which on accuracies stay near the best one; None if the last round's is not.

    FedProto prints "communication rounds required for convergence" (Table 1) without a definition.
    """
    low = max(means.values()) - TOLERANCE
    kept = list(takewhile(lambda round_number: means[round_number] >= low, sorted(means, reverse=True)))
    return kept[-1] if kept else None


@dataclass(frozen=True)
class Traffic:
    """Traffic of all parties together, by direction, as in ``summary.json``."""

    parameters_up_per_round: Number  #: Mean over the rounds that sent any, counted as papers do
    parameters_up_over_all_rounds: Number
    bytes_up_total: Large  #: All encoded messages
    parameters_down_per_round: Number
    parameters_down_over_all_rounds: Number
    bytes_down_total: Large

    @property
    def parameters_per_round(self) -> dict[str, float]:
        """Mean number of parameters, ``up`` and ``down``, over the rounds that sent any."""
        return {way: getattr(self, f"parameters_{way}_per_round") for way in WAYS}

    @property
    def parameters_over_all_rounds(self) -> dict[str, float]:
        """Mean number of parameters, ``up`` and ``down``, over all rounds."""
        return {way: getattr(self, f"parameters_{way}_over_all_rounds") for way in WAYS}

    @property
    def bytes_total(self) -> dict[str, int]:
        """Bytes of all messages, ``up`` and ``down``."""
        return {way: getattr(self, f"bytes_{way}_total") for way in WAYS}

    @property
    def sent(self) -> int:
        """Bytes in both directions."""
        return self.bytes_up_total + self.bytes_down_total

    @classmethod
    def of(cls, rounds: Sequence[RoundRecord]) -> Traffic:
        """Return the traffic of some rounds."""
        parts: dict[str, Any] = {}
        for way in WAYS:
            numbers = [r.parameters[way] for r in rounds]
            parts[f"parameters_{way}_per_round"] = sum(numbers) / max(1, sum(map(bool, numbers)))
            parts[f"parameters_{way}_over_all_rounds"] = sum(numbers) / max(1, len(numbers))
            parts[f"bytes_{way}_total"] = sum(r.bytes[way] for r in rounds)
        return cls(**parts)


@dataclass(frozen=True)
class Outcome:
    """Accuracy, communication and time of a run, computed from its rounds."""

    rounds: Count
    accuracy: dict[str, RuleOutcome]  #: By inference rule, in the method's order; empty before the first evaluation
    communication: Traffic
    seconds: Times  #: Sums over the rounds
    refused: Count

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
            "communication": vars(self.communication),
            "seconds": self.seconds,
            "refused": self.refused,
        }


@dataclass(frozen=True, kw_only=True)
class _About:
    """What a summary says of a run beside its outcome."""

    protofed: Line
    recipe: Line
    method: Line
    exchanges: Line  #: In words
    seed: Large
    clients: Large
    peak_memory_bytes: Large | None = None  #: None if unknown
    environment: dict[str, Any] = field(default_factory=dict)  #: Versions, device and settings that matter
    label: Line = ""  #: Of figures and tables; ``""`` for the method's name
    main_rule: Line
    privacy: Spent | None = None  #: Cost of differential privacy


@dataclass(frozen=True, kw_only=True)
class Summary(_About):
    """The summary of a finished run."""

    outcome: Outcome

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``summary.json``."""
        first = ("protofed", "recipe", "method", "exchanges", "seed", "clients", "main_rule")
        return {
            **{name: getattr(self, name) for name in first},
            **self.outcome.to_dict(),
            "peak_memory_bytes": self.peak_memory_bytes,
            "environment": self.environment,
            **({"label": self.label} if self.label else {}),
            **({"privacy": self.privacy.to_dict()} if self.privacy else {}),
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any], where: str) -> Summary:
        """Return the summary that :meth:`to_dict` wrote."""
        if "main_rule" not in value:
            raise CheckpointError(
                f"{where}: written before version 0.3: show the run with that version, or repeat it"
            )
        known = {name: part for name, part in value.items() if part is not None}
        return cls(**vars(decode(known, _About, where)), outcome=decode(known, Outcome, where))
