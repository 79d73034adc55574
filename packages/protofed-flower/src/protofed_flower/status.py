"""The state of a deployment as its files tell: of a run at the server, or of what has left a node."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from protofed.engine import Run, RunDirectory, load_run
from protofed.errors import CheckpointError, ConfigError
from protofed.text import duration, size
from protofed_flower.ledger import NAME, RECEIVED, LedgerEntry, read_ledger, read_receipts

QUIET = 600.0  #: Seconds without a message, and without ten rounds' time, from which on something is wrong
STOPPED = "stopped: no process runs it; see the SuperLink's log, then go on with resume=…"


class Health(NamedTuple):
    """The state of one side: in words, and whether it has finished, or was heard of lately, without damage."""

    healthy: bool
    lines: list[str]


def status(place: Path, now: datetime | None = None) -> Health:
    """Return the state of a run directory of a server, or of a node's state folder or ledger."""
    now = now or datetime.now(UTC)
    if place.name == NAME or (place / NAME).is_file():
        return _node(place if place.name == NAME else place / NAME, now)
    if (place / RECEIVED).is_file() or (place / "config.toml").is_file():
        return _server(place, now)
    raise ConfigError(f"{place}: neither a run directory of a server nor the state-dir of a node")


def _age(text: str, now: datetime) -> float:
    try:
        then = datetime.fromisoformat(text)
        return max(0.0, (now - then).total_seconds())
    except (ValueError, TypeError):
        raise CheckpointError(f"{text!r} is no time in UTC: expected e.g. 2026-01-31T12:00:00+00:00") from None


def _server(folder: Path, now: datetime) -> Health:
    heard: dict[str, float] = {}
    if (folder / RECEIVED).is_file():
        for receipt in read_receipts(folder / RECEIVED):
            heard[receipt.client or f"node {receipt.node}"] = _age(receipt.time, now)
    quiet, running = min(heard.values(), default=0.0), RunDirectory(folder).in_use
    seen = [f"{name}: last message {duration(age)} ago" for name, age in heard.items()]
    if not (folder / "rounds.jsonl").is_file():
        state = "no round is complete yet" + ("" if running else f"; {STOPPED}")
        return Health(running and quiet < QUIET, [state, *seen])
    run = load_run(folder)
    last = run.rounds[-1] if run.rounds else None
    pace = statistics.median(record.seconds["total"] for record in run.rounds[-5:]) if last else 0.0
    healthy = run.finished or (running and quiet < max(QUIET, 10 * pace))
    quiet_state = "quiet: its nodes or the network may be gone" if running else STOPPED
    state = "finished" if run.finished else "running" if healthy else quiet_state
    return Health(healthy, [*_describe_run(run, pace, state), *seen])


def _describe_run(run: Run, pace: float, state: str) -> Iterator[str]:
    left = (run.planned_rounds - run.last_round) * pace
    until = f", about {duration(left)} left" if state == "running" and pace else ""
    yield f"{run.method}: round {run.last_round} of {run.planned_rounds}, {state}{until}"
    if run.rules:
        yield f"accuracy by {run.main_rule}: {run.accuracy(run.main_rule)[run.last_evaluation]:.1%}"
    for record in run.rounds[-1:]:
        yield from (f"round {record.round}: without {a.client} ({a.phase}): {a.reason}" for a in record.missing)
        yield from (f"round {record.round}: {r.client} refused: {r.field} {r.reason}" for r in record.refused)
    yield from (f"left out: {who}: {why}" for who, why in run.federation.left_out.items())


def _node(ledger: Path, now: datetime) -> Health:
    found = list(read_ledger(ledger))
    faults = [f"line {number} {fault}" for number, _, fault in found if isinstance(fault, str)]
    entries = [entry for _, _, entry in found if isinstance(entry, LedgerEntry)]
    sent: Counter[str] = Counter()
    for entry in entries:
        sent[entry.client] += entry.bytes
    newest = {entry.client: entry for entry in entries}
    ages = {name: _age(entry.time, now) for name, entry in newest.items()}
    spent = {entry.client: entry.epsilon for entry in entries if entry.epsilon is not None}
    errors = [entry for entry in entries if entry.kind == "error"]
    lines = [
        f"{name or 'node'}: round {entry.round}, last message {duration(ages[name])} ago ({entry.kind}), "
        f"{size(sent[name])} in all" + (f", ε {spent[name]:.3g}" if name in spent else "")
        for name, entry in newest.items()
    ]
    lines += [f"last error, {errors[-1].time}: {errors[-1].content}"] if errors else []
    refused = bool(entries) and entries[-1].kind == "error"
    return Health(not faults and not refused, [*lines, *faults])
