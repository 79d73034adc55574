"""The answer of a comparison: the gain over the best method that sends nothing, overall and by site."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from protofed.analysis.exchange import EXCHANGES, exchanges
from protofed.analysis.metrics import overall_text
from protofed.analysis.table import TextCell, TextTable
from protofed.runs.run import Run, by_label, rule_of, select_finished
from protofed.text import duration, size
from protofed.trained.paired import Interval, Sampled, same_tests, two_level

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

NAMED = 4  #: Most sites that a sentence names
ROWS = 12  #: Most methods in the short table; the best ones, and the best that sends nothing


class PairedScores(NamedTuple):
    """Numbers of a client's test samples, and of those that two methods classify correctly."""

    tests: int
    ours: float
    theirs: float
    apart: float  #: Samples that exactly one of the two has right


@dataclass(frozen=True)
class MethodResult:
    """A method in a comparison."""

    label: str
    runs: list[Run]
    rule: str
    exchanges: str  #: One of :data:`~protofed.analysis.exchange.EXCHANGES`; ``""`` if not known
    #: In percent, of all clients' own test samples after the last round, with its 95 % interval over test samples
    #: and seeds
    accuracy: Interval

    @property
    def sent(self) -> float:
        """Bytes that all clients and the server sent, mean over seeds."""
        return statistics.fmean(run.outcome.communication.sent for run in self.runs)

    @property
    def seconds(self) -> float:
        """Time of a run, mean over seeds."""
        return statistics.fmean(run.outcome.seconds["total"] for run in self.runs)

    @property
    def traffic(self) -> str:
        """Its rounds and bytes in words."""
        rounds = max(run.last_round for run in self.runs)
        return f"{size(self.sent)} in {rounds} round{'s' if rounds > 1 else ''}"

    @property
    def open_rule(self) -> str:
        """Its rule on all classes."""
        return self.runs[0].federation.open_rule or self.rule

    @property
    def unseen(self) -> float | None:
        """Accuracy in percent on classes that a client has no samples of, by its rule on all classes; or None."""
        rule = self.open_rule
        found = [run.outcome.accuracy[rule].unseen for run in self.runs if rule in run.outcome.accuracy]
        known = [beyond.final for beyond in found if beyond and beyond.final is not None]
        return 100 * statistics.fmean(known) if known else None

    def gain(self, other: MethodResult, level: float = 0.95) -> Interval | None:
        """Return how many points more it reaches, with the interval over test samples and seeds.

        Both are compared on the seeds that they have in common; None if there are none.
        """
        known = [found for pair in self._pairs(other) if (found := _apart(*pair))]
        return two_level(known, level, same=same_tests(self.runs)) if known else None

    def gains(self, other: MethodResult, level: float = 0.95) -> dict[str, Interval]:
        """Return the same on the test samples of each client that has some, by name."""
        found: dict[str, list[Sampled]] = {}
        for pair in self._pairs(other):
            for name, scores in _pair_scores(*pair):
                found.setdefault(name, []).append(_difference([scores]))
        same = same_tests(self.runs)
        return {name: two_level(values, level, same=same) for name, values in found.items()}

    def _pairs(self, other: MethodResult) -> Iterator[tuple[Run, str, Run, str]]:
        """Yield the runs of both that have a seed in common, each with its rule."""
        theirs = {run.seed: run for run in other.runs}
        for run in sorted(self.runs, key=lambda run: run.seed):
            if run.seed in theirs:
                yield run, self.rule, theirs[run.seed], other.rule


@dataclass(frozen=True)
class Answer:
    """The answer of a comparison."""

    results: list[MethodResult]  #: The best first
    control: MethodResult | None  #: The best that sends nothing; None without one
    #: The best that exchanges; None without one. Both are chosen by the same test samples, which favours whichever
    #: side has more methods
    best: MethodResult | None

    @property
    def gain(self) -> Interval | None:
        """Points that the best exchange gains over the best that sends nothing."""
        return self.best.gain(self.control) if self.best and self.control else None

    @property
    def tried(self) -> int:
        """Number of communicating methods compared (Bonferroni)."""
        return sum(result.exchanges in EXCHANGES[1:] for result in self.results)

    @property
    def sure(self) -> int:
        """The sign of the gain where it stands although the best of several was taken (Bonferroni), otherwise 0.

        A gain is chosen from the methods that exchange, a loss by the best of those that send nothing.
        """
        gain = self.gain
        if gain is None or self.best is None or self.control is None:
            return 0
        silent = sum(result.exchanges == EXCHANGES[0] for result in self.results)
        wider = self.best.gain(self.control, 1 - 0.05 / (self.tried if gain.sign > 0 else silent))
        return wider.sign if wider else 0

    @property
    def sites(self) -> dict[str, Interval]:
        """The same on the test samples of each client that has some."""
        return self.best.gains(self.control) if self.best and self.control else {}

    @property
    def sentences(self) -> list[str]:
        """The answer, the most important first."""
        gain = self.gain
        if gain is None or self.best is None or self.control is None:
            return [_alone(self.results[0])] if len(self.results) == 1 else []
        helps = {1: "Federating helps", -1: "Federating does not help", 0: "No gain from federating is seen"}
        sure = self.sure
        said = helps[sure]
        if gain.sign > 0 and not sure:
            said = f"Federating may help, but the best of {self.tried} methods can be as good by chance"
        drawn = _describe_draws(self.best, self.control)
        if sure > 0 and drawn:
            said = "Federating seems to help"
        told = (
            f"{said}: {gain.text()} points with {self.best.label} ({_accuracy(self.best)}, "
            f"{self.best.traffic}) against {self.control.label}, the best that sends nothing "
            f"({_accuracy(self.control)}){drawn}."
        )
        others = [*_rules(self.best, self.control), *self._kinds(self.best, self.control)]
        level = 1 - 0.05 / max(len(self.sites), 1)
        single = all(len(result.runs) == 1 for result in self.results)
        return [
            told,
            *_unseen(self.best, self.control),
            *_of_sites(self.best.gains(self.control, level)),
            *others,
            *(["One split: --seeds 0,1,2 shows how much it matters."] if single and not drawn else []),
        ]

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join(self.sentences)

    def _kinds(self, best: MethodResult, control: MethodResult) -> list[str]:
        """Return a sentence on the best other method of every kind of exchange."""
        parts = []
        for kind in EXCHANGES[1:]:
            other = next((each for each in self.results if each.exchanges == kind and each is not best), None)
            if other and (gain := other.gain(control)):
                seen = {1: "a gain", -1: "a loss", 0: "no gain seen"}[gain.sign]
                parts.append(f"{kind} ({other.label}): {seen}, {gain.text()}")
        return [f"Others by what they send: {'; '.join(parts)}."] if parts else []


def answer(runs: Sequence[Run]) -> Answer | None:
    """Return the answer that runs give; None along axes, of several recipes, or if nothing was evaluated.

    Each method is taken by its main rule, over all clients' test samples after the last round.
    """
    if any(run.values for run in runs) or len({run.recipe for run in runs}) > 1:
        return None
    groups = {
        label: select_finished([r for r in group if r.evaluations]) for label, group in by_label(runs).items()
    }
    results = [_result(label, group) for label, group in groups.items() if group]
    results.sort(key=lambda result: -result.accuracy.mean)
    silent = next((result for result in results if result.exchanges == EXCHANGES[0]), None)
    loud = next((result for result in results if result.exchanges in EXCHANGES[1:]), None)
    return Answer(results, silent, loud) if results else None


def answer_table(found: Answer, most: int = ROWS) -> TextTable:
    """Return one row for each of the ``most`` best methods: accuracy, gain over the control, bytes and time."""
    control, seeds = found.control, max(len(result.runs) for result in found.results)
    measured = [all(run.measured and len(run.class_names) == 2 for run in r.runs) for r in found.results]
    table = TextTable(["method", "accuracy", *["over the control"] * bool(found.gain), *["AUROC"] * all(measured)])
    table.head += ["sent", "time"]
    drawn = f"{seeds} seeds" if seeds > 1 else "one seed"
    table.title = f"Own test samples, in %, with 95 % interval over test samples and {drawn}"
    shown = found.results[:most]
    if control and control not in shown:
        shown = [*shown[:-1], control]
    for result in shown:
        other = f"by {result.rule}" if result.rule != shown[0].rule else ""
        cells: list[str | TextCell] = [TextCell(result.accuracy.with_half(), other)]
        if found.gain and control:
            gain = None if result is control else result.gain(control)
            cells.append("control" if result is control else gain.text() if gain else "–")
        if all(measured):
            cells.append(overall_text([run.measured for run in result.runs if run.measured], "auroc"))
        table.add(
            TextCell(result.label, strong=result is found.best), *cells, size(result.sent), duration(result.seconds)
        )
    mixed = any(result.rule != shown[0].rule for result in shown)
    told = [f"By the rule {shown[0].rule}, unless a cell names another."] if mixed else []
    told += ["AUROC: mean ± standard deviation over seeds."] * all(measured)
    if left := len(found.results) - len(shown):
        told.append(f"{left} more: --full, or the report.")
    table.caption = " ".join(told)
    return table


def _rules(best: MethodResult, control: MethodResult) -> list[str]:
    """Return a sentence on the inference rules of both if they differ."""
    if best.rule == control.rule:
        return []
    both = [rule for rule in control.runs[0].rules if rule in best.runs[0].rules]
    alike = f": evaluation.rule={both[0]} scores both alike" if both else ", and have none in common"
    return [f"They are scored by different rules, {best.rule} and {control.rule}{alike}."]


def _result(label: str, group: list[Run]) -> MethodResult:
    rule = rule_of(group)
    found = [each for run in group if (each := _own(run, rule))]
    accuracy = two_level(found, same=same_tests(group)) if found else Interval(-math.inf, -math.inf, math.inf)
    return MethodResult(label, group, rule, exchanges(group[0]), accuracy)


def _own(run: Run, rule: str) -> Sampled | None:
    """Return the final accuracy in percent over test samples."""
    if not run.accuracy(rule):
        return None
    n = sum(sum(client.test) for client in run.clients) if _is_clear(run) else 0
    return Sampled.share(run.accuracy(rule)[run.last_evaluation], n)


def _apart(one: Run, rule: str, other: Run, theirs: str) -> Sampled | None:
    """Return the difference of two runs in points, with an upper bound of its variance over test samples."""
    if pairs := [scores for _, scores in _pair_scores(one, rule, other, theirs)]:
        return _difference(pairs)
    if not (one.accuracy(rule) and other.accuracy(theirs)):
        return None
    ours, base = one.accuracy(rule)[one.last_evaluation], other.accuracy(theirs)[other.last_evaluation]
    return Sampled(100 * (ours - base), math.inf)


def _difference(pairs: Sequence[PairedScores]) -> Sampled:
    """Return a difference in points over the test samples of some clients."""
    n = sum(each.tests for each in pairs)
    return Sampled.difference(n, sum(each.ours - each.theirs for each in pairs), sum(each.apart for each in pairs))


def _pair_scores(one: Run, rule: str, other: Run, theirs: str) -> Iterator[tuple[str, PairedScores]]:
    """Yield the scores of every tested client; none unless all clients state exact sample counts."""
    tests = {client.name: sum(client.test) for client in one.clients}
    if not (_is_clear(one) and _is_clear(other)) or tests != {
        client.name: sum(client.test) for client in other.clients
    }:
        return
    if rule not in one.rules or theirs not in other.rules:
        return
    values = dict(zip(other.names, other.client_accuracies(theirs), strict=True))
    for name, ours in zip(one.names, one.client_accuracies(rule), strict=True):
        base = values[name]
        if ours is not None and base is not None and (n := tests[name]):
            hits = _hits(one, rule, name, ours), _hits(other, theirs, name, base)
            # Without the answers one by one, as many are apart as can be.
            most = n * (ours + base - 2 * max(0.0, ours + base - 1))
            apart = most if hits[0] is None or hits[1] is None else float((hits[0] != hits[1]).sum())
            yield name, PairedScores(n, ours * n, base * n, apart)


def _hits(run: Run, rule: str, client: str, accuracy: float) -> NDArray[np.bool_] | None:
    """Return which test samples a client classifies correctly; None if unknown or not its recorded accuracy."""
    own = run.measured.clients.get(client) if run.measured else None
    if run.measured is None or own is None or rule != (own.rule or run.measured.rule):
        return None
    hits = own.hits()
    return hits if hits is not None and abs(hits.mean() - accuracy) < 1e-6 else None


def _is_clear(run: Run) -> bool:
    return all(client.counts == "exact" for client in run.clients)


def _of_sites(sites: dict[str, Interval]) -> list[str]:
    """Return a sentence on the sites that gain and those that lose."""
    if len(sites) < 2:
        return []
    up, down, same = ([name for name, gain in sites.items() if gain.sign == sign] for sign in (1, -1, 0))
    parts = [f"By site, a gain is seen at {len(up) or 'none'} of {len(sites)}{_names(up)}"]
    parts += [f"a loss at {len(down)}{_names(down)}"] if down else []
    parts += [f"neither at {len(same)}{_names(same)}"] if up and same else []
    return [f"{', '.join(parts)}."]


def _unseen(best: MethodResult, control: MethodResult) -> list[str]:
    """Return a sentence on classes that clients lack."""
    if best.unseen is None or control.unseen is None:
        return []
    without = f"{control.unseen:.1f} % without exchanging"
    by = "" if best.open_rule == best.rule else f" (by {best.open_rule})"
    return [f"Of samples of classes that a site lacks, {best.unseen:.1f} % are right{by}, {without}."]


def _names(names: Sequence[str]) -> str:
    return f" ({', '.join(names)})" if 0 < len(names) <= NAMED else ""


def _alone(result: MethodResult) -> str:
    """Describe the only method of some runs."""
    run, rule = result.runs[-1], result.rule
    others = [f"{name} {100 * run.outcome.accuracy[name].final:.1f}" for name in run.rules if name != rule]
    named = [(a, name) for name, a in zip(run.names, run.client_accuracies(rule), strict=True) if a is not None]
    spread = (
        f", from {100 * min(named)[0]:.1f} % at {min(named)[1]} to {100 * max(named)[0]:.1f} %"
        if len(named) > 1
        else ""
    )
    more = f" Other rules: {', '.join(others)} %." if others else ""
    return (
        f"{result.label} is right on {_accuracy(result)} of its clients' own test samples ({rule}){spread}, after "
        f"{result.traffic}.{more} Only a comparison shows what federating adds: protofed compare."
    )


def _describe_draws(best: MethodResult, control: MethodResult) -> str:
    """Return a note that one seed's interval ignores the draw of initial weights; "" if it does not apply."""
    if len(best.runs) > 1 or not any(r.losses for each in (best, control) for r in each.runs[0].rounds[-1:]):
        return ""
    return "; the draw of the weights is not in this interval (--seeds 0,1,2)"


def _accuracy(result: MethodResult) -> str:
    return f"{result.accuracy.mean:.1f} %"
