"""One run as its directory tells it, finished or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from protofed.runs.description import ClientDescription, FederationDescription
from protofed.runs.metrics import Metrics
from protofed.runs.records import Accuracy, RoundRecord
from protofed.runs.rules import Rule, find_rule, in_order, main_rule
from protofed.runs.summary import Outcome, Summary
from protofed.untrusted import limits


@dataclass(frozen=True)
class Run:
    """One run, finished or not."""

    directory: Path
    config: dict[str, Any]
    federation: FederationDescription
    rounds: list[RoundRecord]  #: Ascending
    summary: Summary | None  #: None until the run has finished
    label: str  #: Name of the method in figures and tables; runs of one label differ in their seed
    values: tuple[str, ...] = ()  #: Along the axes of its comparison
    listed: str = ""  #: Method or variant in its comparison; ``""`` outside one
    measured: Metrics | None = None  #: None unless metrics were computed

    @property
    def report(self) -> Path:
        """Path of the HTML report."""
        return self.directory / "report.html"

    @property
    def arm(self) -> str:
        """Name of the method, or of the variant as which its comparison lists it."""
        return self.listed or self.method

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.config.get("method", {}).get("name", "unknown"))

    @property
    def recipe(self) -> str:
        """Name of the recipe, or ``""``."""
        return str(self.config.get("recipe", ""))

    @property
    def seed(self) -> int:
        """The experiment's seed."""
        return int(self.config.get("seed", 0))

    @property
    def finished(self) -> bool:
        """Return whether all rounds were run."""
        return self.summary is not None

    @property
    def last_round(self) -> int:
        """The last round on record; 0 before the first has ended."""
        return self.rounds[-1].round if self.rounds else 0

    @property
    def planned_rounds(self) -> int:
        """Number of requested rounds."""
        return int(self.config.get("rounds", self.last_round))

    @property
    def notes(self) -> list[str]:
        """Remarks of the method on its configuration, and on what it found: texts among the last diagnostics."""
        found = self.rounds[-1].diagnostics.values() if self.rounds else ()
        texts = [text for text in found if isinstance(text, str) and text.isprintable()]
        return [*self.federation.notes, *(text for text in texts if len(text) <= 2 * limits.REASON)]

    @property
    def class_names(self) -> list[str]:
        """Names of the ``K`` classes."""
        return self.federation.class_names

    @property
    def clients(self) -> list[ClientDescription]:
        """The clients in their fixed order."""
        return self.federation.clients

    @property
    def names(self) -> list[str]:
        """Names of the clients in their fixed order."""
        return [client.name for client in self.clients]

    @cached_property
    def evaluations(self) -> dict[int, Accuracy]:
        """Round → its test accuracies, for the evaluated rounds."""
        return {record.round: record.accuracy for record in self.rounds if record.accuracy}

    @property
    def last_evaluation(self) -> int:
        """The last evaluated round; 0 before there is one."""
        return max(self.evaluations, default=0)

    @cached_property
    def rules(self) -> tuple[str, ...]:
        """Inference rules that were scored, in the method's order."""
        return tuple(dict.fromkeys(rule for accuracy in self.evaluations.values() for rule in accuracy.weighted))

    @property
    def main_rule(self) -> str:
        """The rule that headline numbers are about: ``evaluation.rule``, or else the method's own."""
        return main_rule(self.rules, read_rule(self.config))

    def rule(self, name: str) -> Rule:
        """Return a rule as the run's method describes it."""
        return self.federation.rules.get(name) or find_rule(name)

    @cached_property
    def outcome(self) -> Outcome:
        """Accuracy, communication and time of the rounds so far."""
        return Outcome.of(self.rounds)

    def accuracy(self, rule: str) -> dict[int, float]:
        """Return round → accuracy over all test samples, for the rounds evaluated by ``rule``."""
        return {t: a.weighted[rule] for t, a in self.evaluations.items() if rule in a.weighted}

    def client_accuracies(self, rule: str) -> list[float | None]:
        """Return each client's accuracy at the last evaluation; None without test samples."""
        return self.evaluations[self.last_evaluation].clients[rule] if self.evaluations else []

    @property
    def last_validation(self) -> Accuracy | None:
        """The last accuracies on validation samples; None without any."""
        return next((r.validation for r in reversed(self.rounds) if r.validation is not None), None)

    def validated_rule(self, client: str) -> str:
        """Return the rule with the best last accuracy on a client's validation samples: if equal, the main rule.

        ``""`` if it was not scored on any.
        """
        place, by_rule = self.names.index(client), self.last_validation.clients if self.last_validation else {}
        found = {rule: by_rule[rule][place] for rule in self.rules if rule in by_rule}
        scores = {rule: (score, rule == self.main_rule) for rule, score in found.items() if score is not None}
        return max(scores, key=lambda rule: scores[rule], default="")

    def sent(self) -> dict[int, int]:
        """Return round → bytes sent since the start, by all parties in both directions."""
        total, result = 0, {}
        for record in self.rounds:
            total += record.sent
            result[record.round] = total
        return result


def read_rule(config: Mapping[str, Any]) -> str:
    """Return the option ``evaluation.rule`` of a configuration; ``""`` without one."""
    return str(config.get("evaluation", {}).get("rule", ""))


def rule_of(runs: Sequence[Run]) -> str:
    """Return the main rule of runs of one method, as the first of them that was scored has it."""
    return next((run for run in runs if run.rules), runs[0]).main_rule


def rules_of(runs: Iterable[Run]) -> dict[str, Rule]:
    """Return the rules by which runs were scored, by name in the order of tables."""
    return in_order(run.rule(name) for run in runs for name in run.rules)


def by_label(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return label → its runs, both in order of appearance."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.label, []).append(run)
    return groups


def select_finished(runs: Sequence[Run]) -> list[Run]:
    """Return the finished runs, or all if none has finished: averages must not mix late and early rounds."""
    return [r for r in runs if r.finished] or list(runs)
