"""The state of a deployment as its files tell: of a run at the server, or of what has left a node.

Everything is read anew for each answer, by a process of its own, so that no run waits for it.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from protofed.engine import Run, RunDirectory, load_run
from protofed.errors import CheckpointError, ConfigError, ProtofedError
from protofed.text import duration, size
from protofed_flower.ledger import NAME, RECEIVED, LedgerEntry, read_ledger, read_receipts

QUIET = 600.0
"""Seconds without a message, and without ten rounds' time, from which on something is wrong."""
STOPPED = "stopped: no process runs it; see the SuperLink's log, then go on with resume=…"
Numbers = dict[str, dict[tuple[str, ...], float]]


@dataclass
class Health:
    """The state of one side.

    Attributes:
        healthy: Finished, or running and heard of lately, and without damage.
        lines: In words.
        numbers: By name, and by the values of ``labels``.
    """

    side: str
    healthy: bool
    lines: list[str]
    numbers: Numbers = field(default_factory=dict)


HELP = {
    "rounds_completed": ("Rounds that were completed.", ()),
    "rounds_planned": ("Rounds of the run.", ()),
    "round_seconds": ("Duration of the last round.", ()),
    "clients": ("Clients of the run.", ()),
    "clients_missing": ("Clients without a result in the last round.", ()),
    "clients_left_out": ("Nodes and clients that could not take part.", ()),
    "last_message_age_seconds": ("Time since the last message of a client.", ("client",)),
    "messages": ("Messages that left.", ("client", "kind")),
    "sent_bytes": ("Bytes that left.", ("client",)),
    "epsilon": ("Epsilon spent by a client in its last run.", ("client",)),
    "healthy": ("1 if the side is healthy.", ()),
}
"""Description and labels of each number."""


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
    numbers: Numbers = {"last_message_age_seconds": {(name,): age for name, age in heard.items()}}
    seen = [f"{name}: last message {duration(age)} ago" for name, age in heard.items()]
    if not (folder / "rounds.jsonl").is_file():
        state = "no round is complete yet" + ("" if running else f"; {STOPPED}")
        return Health("server", running and quiet < QUIET, [state, *seen], numbers)
    run = load_run(folder)
    last = run.rounds[-1] if run.rounds else None
    pace = statistics.median(record.seconds["total"] for record in run.rounds[-5:]) if last else 0.0
    healthy = run.finished or (running and quiet < max(QUIET, 10 * pace))
    single = {
        "rounds_completed": run.last_round,
        "rounds_planned": run.planned_rounds,
        "round_seconds": last.seconds["total"] if last else 0.0,
        "clients": len(run.clients),
        "clients_missing": len({absence.client for absence in last.missing}) if last else 0,
        "clients_left_out": len(run.federation.left_out),
    }
    numbers |= {name: {(): float(value)} for name, value in single.items()}
    quiet_state = "quiet: its nodes or the network may be gone" if running else STOPPED
    state = "finished" if run.finished else "running" if healthy else quiet_state
    return Health("server", healthy, [*_told(run, pace, state), *seen], numbers)


def _told(run: Run, pace: float, state: str) -> Iterator[str]:
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
    kinds = Counter((entry.client, entry.kind) for entry in entries)
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
    numbers: Numbers = {
        "messages": {key: float(number) for key, number in kinds.items()},
        "sent_bytes": {(name,): float(number) for name, number in sent.items()},
        "last_message_age_seconds": {(name,): age for name, age in ages.items()},
        "epsilon": {(name,): cost for name, cost in spent.items()},
    }
    return Health("node", not faults and not refused, [*lines, *faults], numbers)


def metrics(found: Health) -> bytes:
    """Return a status as a page that Prometheus reads."""
    registry = CollectorRegistry()
    numbers: Numbers = {**found.numbers, "healthy": {(): float(found.healthy)}}
    for name, values in numbers.items():
        gauge = Gauge(f"protofed_{found.side}_{name}", *HELP[name], registry=registry)
        for key, value in values.items():
            (gauge.labels(*key) if key else gauge).set(value)
    return bytes(generate_latest(registry))


def server(place: Path, host: str, port: int) -> ThreadingHTTPServer:
    """Return a server of ``/health`` (200, or 503 if not healthy), ``/metrics`` and ``/status`` (JSON)."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10.0

        def do_GET(self) -> None:  # the name that http.server asks for
            try:
                found = status(place)
            except ProtofedError as error:
                found = Health("server", False, [str(error)])
            shown: dict[str, Any] = {name: value for name, value in asdict(found).items() if name != "numbers"}
            pages = {
                "/health": ("text/plain", b"ok\n" if found.healthy else b"not healthy\n"),
                "/metrics": ("text/plain; version=0.0.4", b""),
                "/status": ("application/json", json.dumps(shown).encode()),
            }
            kind, body = pages.get(self.path, ("text/plain", b"expected /health, /metrics or /status\n"))
            body = metrics(found) if self.path == "/metrics" else body
            sick = self.path == "/health" and not found.healthy
            self.send_response(404 if self.path not in pages else 503 if sick else 200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Write no line per request."""

    try:
        return ThreadingHTTPServer((host, port), Handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"{host}:{port}: cannot be served ({error}): choose another address") from None
