"""Runs as rows of a table: for every cell a value to sort by and its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from protofed.runs.run import Run
from protofed.runs.summary import RuleOutcome
from protofed.text import duration, number, percent, size
from protofed_lab.viewer.library import SeenRun, State
from protofed_lab.viewer.lines import Look, looks

Row = dict[str, Any]


def column(name: str, label: str, title: str = "", kind: str = "number") -> dict[str, str]:
    """Return a column of :class:`~protofed_lab.viewer.pages.RecordTable`."""
    return {"name": name, "label": label, "kind": kind, **({"title": title} if title else {})}


RUN_COLUMNS = [
    column("run", "Run", kind="text"),
    column("state", "State", kind="state"),
    column("seed", "Seed"),
    column("final", "Final", "Test accuracy at the last evaluation"),
    column("validated", "Best validated", "Test accuracy in the round that is best on validation data"),
    column("best", "Best", "Best test accuracy: chosen on test data"),
    column("mean", "Mean over clients", "At the last evaluation, unweighted, ± standard deviation over clients"),
    column(
        "best mean",
        "Mean, best round",
        "Mean over clients in the round that is best on test data, ± standard deviation",
    ),
    column("converged", "Converged", "First round from which on the mean over clients stays near its best"),
    column("union", "Everyone’s samples", "Every client on all clients' test samples, at the last evaluation"),
    column("unseen", "Unseen classes", "The same, on classes that the client has no training samples of"),
    column(
        "newcomers",
        "Newcomers",
        "Clients that joined after training, on their own test samples, at the last evaluation",
    ),
    column("sent", "Sent", "By all parties since the start, up and down"),
    column("time", "Time", "Of all rounds so far"),
]

SELDOM = ("validated", "union", "unseen", "newcomers")  #: Columns that most runs cannot fill

STATE_ORDER = (State.DAMAGED, State.RUNNING, State.QUIET, State.STARTING, State.WAITING, State.FINISHED)


def address(key: str) -> str:
    """Return the path of a run's page.

    Example:
        >>> address("a b/seed#0")
        '/run/a%20b/seed%230'
    """
    return "/run/" + quote(key)


def comparing(keys: Sequence[str]) -> str:
    """Return the path of the page that compares some runs.

    Example:
        >>> comparing(["a", "b/c"])
        '/compare?run=a&run=b%2Fc'
    """
    return "/compare?" + urlencode([("run", key) for key in keys])


def part_done(run: Run) -> float:
    """Return the completed share of the planned rounds."""
    return min(1.0, run.last_round / run.planned_rounds) if run.planned_rounds > 0 else 0.0


def state_text(seen: SeenRun) -> str:
    """Describe the progress of a run."""
    run = seen.run
    if run is None or seen.state is State.STARTING:
        return str(seen.state)
    if seen.state is State.FINISHED:
        return f"finished, {number(run.last_round)} rounds" if run.last_round != 1 else "finished, 1 round"
    text = f"{seen.state}, {number(run.last_round)} of {number(run.planned_rounds)}"
    left = run.planned_rounds - run.last_round
    if seen.state is State.RUNNING and left > 0:
        recent = [r.seconds["total"] for r in run.rounds[-10:]]
        seconds = round(left * sum(recent) / len(recent))
        text += f", {duration(seconds) if seconds >= 60 else f'{seconds} s'} left"
    return text


def runs(seen: Mapping[str, SeenRun], rule: str = "") -> list[Row]:
    """Return a row per run, by an inference rule or each run's main one."""
    found = looks(s.run for s in seen.values() if s.run is not None)
    return [_run(s, rule, found) for s in seen.values()]


def run_columns(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return the columns of runs, without those that no row of :func:`runs` fills."""
    filled = {name for row in rows for name, (value, _) in row["cells"].items() if value is not None}
    return [each for each in RUN_COLUMNS if each["name"] in filled or each["name"] not in SELDOM]


def _run(seen: SeenRun, rule: str, found: Mapping[Path, Look]) -> Row:
    run = seen.run
    order = STATE_ORDER.index(seen.state)
    row: Row = {
        "id": seen.key,
        "title": seen.key,
        "note": run.label if run is not None else "",
        "href": address(seen.key),
        "state": str(seen.state),
        "reason": seen.reason,
        "pickable": run is not None,
        "cells": {"run": [seen.key, seen.key], "state": [float(order), state_text(seen)]},
    }
    if run is None:
        return row
    sent, seconds = run.outcome.communication.sent, run.outcome.seconds["total"]
    row["look"] = vars(found[run.directory])
    if not run.finished:
        row["part"] = round(part_done(run), 4)
    row["cells"] |= {
        "run": [f"{run.label} {seen.key}", run.label],
        "state": [order + part_done(run) / 2, state_text(seen)],
        "seed": [run.seed, str(run.seed)],
        **_accuracies(run.outcome.accuracy.get(rule or run.main_rule)),
        "sent": [sent, size(sent) if sent else "nothing"],
        "time": [seconds, duration(seconds)],
    }
    return row


def _accuracies(outcome: RuleOutcome | None) -> dict[str, list[Any]]:
    """Return the cells about one rule; those of a rule that is not scored are empty."""
    if outcome is None:
        names = ("final", "validated", "best", "mean", "best mean", "converged", *SELDOM[1:])
        return dict.fromkeys(names, _percent(None))
    return {
        "final": _percent(outcome.final),
        "validated": _percent(outcome.best_validated),
        "best": _percent(outcome.best),
        "mean": _percent(outcome.client_mean, outcome.client_std),
        "best mean": _percent(outcome.best_client_mean, outcome.best_client_std),
        "converged": [outcome.rounds_to_convergence, number(outcome.rounds_to_convergence)],
        **{part: _percent(outcome.figure(part)) for part in ("union", "unseen", "newcomers")},
    }


def _percent(value: float | None, spread: float | None = None) -> list[Any]:
    return [value, percent(value) + (f" ± {100 * spread:.1f}" if spread is not None else "")]
