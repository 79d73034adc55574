"""The gain of exchanging in a comparison, against the best of the methods that send nothing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from protofed.analysis.exchange import EXCHANGES, exchanges
from protofed.analysis.paired import difference
from protofed.runs.run import Run, by_label, rule_of, settled
from protofed.text import size


def gain(runs: Sequence[Run]) -> str:
    """Say in one line whether the best method that exchanges beats the best that sends nothing; "" without both.

    Each is taken by its main rule, over all clients' test samples after the last round, and both are compared on
    the seeds that they have in common. The best are chosen by the same test samples, which favours whichever side
    has more methods.
    """
    if any(run.values for run in runs):
        return ""
    sides: dict[bool, dict[str, list[Run]]] = {True: {}, False: {}}
    for label, group in by_label(runs).items():
        if exchanges(group[0]) in EXCHANGES and any(run.evaluations for run in group):
            sides[exchanges(group[0]) != EXCHANGES[0]][label] = settled(group)
    if not all(sides.values()):
        return ""
    (ours, one), (control, other) = (max(side.items(), key=lambda item: _mean(item[1])) for side in sides.values())
    left, right = _finals(one), _finals(other)
    if not (seeds := sorted(left.keys() & right.keys())):
        return ""
    apart = difference([left[s] for s in seeds], [right[s] for s in seeds])
    proven = "gains" if apart.sign > 0 else "loses" if apart.sign < 0 else "is not shown to gain"
    doubt = "; one seed proves nothing: compare several (--seeds 0,1,2)" if len(seeds) == 1 else ""
    return (
        f"Of the methods that exchange, {ours} is best ({rule_of(one)} {_mean(one):.1f} %, {_sent(one)}). Against "
        f"{control}, the best that sends nothing ({rule_of(other)} {_mean(other):.1f} %), it {proven}: "
        f"{apart.text()} points{doubt}."
    )


def own_classes(runs: Sequence[Run]) -> str:
    """Return why training alone can be ahead, and where to look then; "" if no method sends nothing."""
    if all(run.outcome.communication.sent for run in runs if run.rounds) or len(by_label(runs)) < 2:
        return ""
    measured = any(outcome.unseen for run in runs for outcome in run.outcome.accuracy.values())
    where = (
        "the figures of all classes (union) and of unseen classes have it"
        if measured
        else "it was not measured here (evaluation.on=union does)"
    )
    return (
        "Clients are tested on samples of their own classes, mostly few, so a method that sends nothing can be "
        "ahead: its clients never have to tell those classes from others. What an exchange adds shows on classes "
        f"that a client lacks; {where}."
    )


def _finals(group: Sequence[Run]) -> dict[int, float]:
    """Return seed → final accuracy in percent by the main rule."""
    rule = rule_of(group)
    return {run.seed: 100 * run.accuracy(rule)[run.last_evaluation] for run in group if run.accuracy(rule)}


def _sent(group: Sequence[Run]) -> str:
    """Return the bytes that all clients and the server sent, mean over seeds, and in how many rounds."""
    rounds = max(run.last_round for run in group)
    sent = statistics.fmean(run.outcome.communication.sent for run in group)
    return f"{size(round(sent))} in {rounds} round{'s' * (rounds > 1)}"


def _mean(group: Sequence[Run]) -> float:
    """Return the mean of the final accuracies; -inf without one."""
    return statistics.fmean(_finals(group).values() or [float("-inf")])
