"""The scores of the clients: on whose samples, by which rule, and when they stop getting better."""

from __future__ import annotations

from collections.abc import Sequence

from protofed.errors import ConfigError, unknown_name
from protofed.methods.contract import Method
from protofed.rounds.options import EvaluationOptions
from protofed.rounds.participation import Participation
from protofed.runs.records import Accuracy, RoundRecord
from protofed.runs.rules import KNOWN_RULES, main_rule
from protofed.visits.contract import Evaluated, Executor, Messages


class Evaluation:
    """Evaluation of the clients."""

    def __init__(self, options: EvaluationOptions, method: Method, executor: Executor) -> None:
        self.options, self.method = options, method
        clients, on, rule = executor.clients, options.on, options.rule
        if options.patience and not any(m.validation for m in clients.values()):
            raise ConfigError("evaluation.patience needs validation samples: set data.validation_fraction")
        known = dict.fromkeys((*method.rules, *KNOWN_RULES))
        if rule and rule not in known:
            raise ConfigError(unknown_name("rule in evaluation.rule", rule, known))
        if on == "own":
            return
        if executor.remote:
            raise ConfigError(f"evaluation.on={on} needs all test samples on this machine: use --engine local")
        tests = [m.test for m in clients.values() if len(m.test)]
        kinds = {(str(t.x.dtype).removeprefix("torch."), tuple(t.x.shape[1:])) for t in tests}
        if len(kinds) != 1:
            found = " and ".join(f"{dtype} of shape {shape}" for dtype, shape in sorted(kinds)) or "none"
            raise ConfigError(f"evaluation.on={on} needs test samples of one type and shape, not {found}")

    @property
    def delivers(self) -> bool:
        """Return whether clients receive the new broadcast before they are scored."""
        return self.options.at == "broadcast"

    @property
    def main_rule(self) -> str:
        """The rule by which results are summed up."""
        return main_rule(self.method.rules, self.options.rule)

    def has_stalled(self, rounds: Sequence[RoundRecord]) -> bool:
        """Return whether validation accuracy has not improved for ``evaluation.patience`` evaluations."""
        found = [r.validation.weighted[self.main_rule] for r in rounds if r.validation]
        since = len(found) - 1 - found.index(max(found)) if found else 0
        return 0 < self.options.patience <= since

    def score(
        self, executor: Executor, messages: Messages | None, participation: Participation, record: RoundRecord
    ) -> list[Evaluated]:
        """Score the clients and write their accuracy into the record of a round."""
        scored: dict[str, Evaluated] = {}
        for each in executor.evaluate(participation.here(record.round), messages, record.round):
            if isinstance(each, Evaluated):
                scored[each.client] = each
            else:
                record.lose(each.client, each.reason, "evaluation")
        results = [scored.get(name) or Evaluated(name, {}, 0, 0.0) for name in participation.names]
        parts = {part: [getattr(r, part) for r in results] for part in ("validation", "union", "unseen")}
        parts["accuracy"] = [(r.correct, r.samples) for r in results]
        if participation.have_joined(record.round):
            new = participation.newcomers
            parts["newcomers"] = [(r.correct, r.samples) if r.client in new else ({}, 0) for r in results]
        for part, scores in parts.items():
            if any(samples for _, samples in scores):  # nodes may keep all scores to themselves
                setattr(record, part, Accuracy.of(scores, self.method.rules))
        return results
