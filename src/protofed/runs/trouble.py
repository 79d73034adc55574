"""Faults in a run's numbers: diverged models, lost rounds, and clients of whom nothing was used."""

from __future__ import annotations

from collections.abc import Sequence

from protofed.runs.records import RoundRecord
from protofed.text import few

HELP = (
    "standardise the data, lower training.lr (or method.lambda or method.gamma, where there is one), or set "
    "training.clip"
)
KEPT = "the server kept its previous state"
_SHOWN = 3


def trouble(record: RoundRecord) -> str:
    """Describe a round's non-finite losses and refused uploads, with advice; "" if all is well."""
    diverged = [refusal.client for refusal in record.refused if refusal.diverged]
    clients = record.not_finite
    parts = ["losses are not finite"] if None in record.losses.values() else []
    if clients:
        found = dict.fromkeys(term for names in clients.values() for term in names)
        terms = [term if term.isprintable() else repr(term) for term in found]
        parts = [f"loss {few(terms, _SHOWN)} is not finite at {few(list(clients), _SHOWN)}"]
    whose = "their uploads" if clients.keys() == set(diverged) else f"uploads of {few(diverged, _SHOWN)}"
    parts += [f"{whose} were refused as diverged"] if diverged else []
    told = [f"{' and '.join(parts)}: {HELP}"] if parts else []
    kept = record.robust.kept
    return "; ".join([*told, f"{KEPT}: {kept}"] if kept else told)


def first_trouble(rounds: Sequence[RoundRecord]) -> str:
    """Return a sentence about the first round that is in trouble, and one about the end; "" if all was well."""
    lost = few(find_diverged(rounds), _SHOWN)
    end = f" At the end, {lost} had diverged (answers that are not finite count as wrong)." if lost else ""
    return _first(rounds) + end


def _first(rounds: Sequence[RoundRecord]) -> str:
    told = ((record.round, trouble(record)) for record in rounds)
    return next((f"Round {round_number}: {found}." for round_number, found in told if found), "")


def unheard(rounds: Sequence[RoundRecord]) -> list[str]:
    """Return the clients all of whose uploads were refused, without the attackers of a simulation."""
    refused: dict[str, int] = {}
    asked: dict[str, int] = {}
    hostile: set[str] = set()
    for record in rounds:
        if not record.bytes["up"] and not record.refused:
            continue  # nobody sends in such a round
        away = {absence.client for absence in record.missing if absence.phase == "training"}
        for client in record.participants:
            asked[client] = asked.get(client, 0) + (client not in away)
        for client in dict.fromkeys(refusal.client for refusal in record.refused):
            refused[client] = refused.get(client, 0) + 1
        hostile |= set(record.attack.clients) if record.attack else set()
    return [client for client, times in refused.items() if times >= asked.get(client, 0) and client not in hostile]


def find_diverged(rounds: Sequence[RoundRecord]) -> list[str]:
    """Return the clients whose loss was not finite, or whose upload diverged, the last time that they took part."""
    last: dict[str, bool] = {}
    for record in rounds:
        away = {absence.client for absence in record.missing if absence.phase == "training"}
        found = {refusal.client for refusal in record.refused if refusal.diverged} | record.not_finite.keys()
        last |= {client: client in found for client in record.participants if client not in away}
    return [client for client, was in last.items() if was]


def ruin(rounds: Sequence[RoundRecord]) -> str:
    """Return a sentence that says why a run's numbers are worth nothing; "" if they are not."""
    if lost := unheard(rounds):
        refused = [refusal for record in rounds for refusal in record.refused if refusal.client in lost]
        last = refused[-1]
        diverging = any(r.diverged for r in refused)
        why = f". {_first(rounds)}" if diverging else f": {last.client}: {last.field}: {last.reason}."
        return f"Every upload of {few(lost, _SHOWN)} was refused, so the result is not theirs{why}"
    if rounds and all(record.losses and record.losses.get("total") is None for record in rounds):
        return f"No round had finite losses. {_first(rounds)}"
    return ""
