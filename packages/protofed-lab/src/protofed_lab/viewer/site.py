"""One site of a run in words: what it has, lacks, gains and reveals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from protofed.analysis.answer import answer
from protofed.analysis.exchange import EXCHANGES, exchanges
from protofed.runs.run import Run
from protofed.text import few, number, percent, plural, size

SHOWN = 12
"""Most classes that are named."""
NEARLY = 3
"""A mean of so few samples is nearly a sample itself."""


class SiteView(NamedTuple):
    """Four sentences on one site."""

    has: str
    lacks: str
    gains: str
    reveals: str


def site_view(run: Run, name: str, others: Iterable[Run] = ()) -> SiteView:
    """Describe a client of a run.

    Args:
        others: Runs on the same split, among which the best that sends nothing is what it would have alone.
    """
    place = run.names.index(name)
    client = run.clients[place]
    if client.counts == "none":
        has, lacks = "It keeps its numbers of samples to itself.", "Not known."
    else:
        held = [f"{label}: {number(n)}" for label, n in zip(run.class_names, client.train, strict=True) if n]
        has = (
            f"{number(sum(client.train))} training samples of {plural(len(held), 'class')} ({few(held, SHOWN)}), "
            f"{number(sum(client.test))} test samples; {client.architecture} "
            f"with {number(client.parameters)} parameters."
        )
        total = [sum(counts) for counts in zip(*(each.train for each in run.clients), strict=True)]
        absent = [
            f"{label}: {number(n)} elsewhere"
            for label, own, n in zip(run.class_names, client.train, total, strict=True)
            if n and not own
        ]
        lacks = (
            f"{plural(len(absent), 'class')} that others have ({few(absent, SHOWN)})."
            if absent
            else "No class that others have."
        )
    return SiteView(has, lacks, _gains(run, place, others), _reveals(run, place))


def _gains(run: Run, place: int, others: Iterable[Run]) -> str:
    if not run.evaluations or run.client_accuracies(run.main_rule)[place] is None:
        return "Not known: nothing was tested here yet."
    own = run.client_accuracies(run.main_rule)[place]
    reached = f"{percent(own)} of its own test samples are right by {run.main_rule}"
    silent = [r for r in others if r.finished and r.seed == run.seed and exchanges(r) == EXCHANGES[0]]
    found = answer([run, *(r for r in silent if r.names == run.names and r.label != run.label)])
    if exchanges(run) == EXCHANGES[0]:
        return f"{reached}, alone."
    if found is None or found.control is None or found.best is None:
        return f"{reached}. To compare with training alone, run a method that sends nothing on the same split."
    gain = found.sites.get(run.names[place])
    apart = f": {gain.text()} points (95 % over test samples)" if gain else ""
    alone = found.control.runs[0].client_accuracies(found.control.rule)[place]
    return f"{reached}; alone {percent(alone)} with {found.control.label}{apart}."


def _reveals(run: Run, place: int) -> str:
    kind, client = exchanges(run), run.clients[place]
    sent = sum(record.bytes["up"] for record in run.rounds) / max(1, len(run.clients))
    if not sent:
        return "Nothing has left it."
    told = f"{kind or 'messages of its method'}, {size(sent)} in {run.last_round} rounds (mean of all sites)"
    few = sum(1 for n in client.train if 0 < n <= NEARLY) if client.counts == "exact" else 0
    near = f"; {few} of its classes have {NEARLY} samples or fewer, whose means are nearly samples" if few else ""
    cost = next((r.privacy for r in reversed(run.rounds) if r.privacy and r.privacy.noise), None)
    return f"It sends {told}{near if kind == EXCHANGES[1] else ''}{f'; ε = {cost.epsilon:.3g}' if cost else ''}."
