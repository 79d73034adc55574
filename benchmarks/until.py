"""Benchmark of what counts: seconds, rounds, gradient steps and bytes until an accuracy is reached."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from benchmarks.htfllib import PEER, Peer, steps_per_round
from benchmarks.ours import Rounds
from benchmarks.peer import as_peer, check_supported, checkout
from benchmarks.request import Note, Request, Result, new_table
from protofed import methods
from protofed.analysis.figures.base import apply_theme, legend_below, log_axis, panels, percent_axis
from protofed.analysis.style import method_styles
from protofed.compute.numerics import cores
from protofed.config.schema import Experiment
from protofed.errors import ConfigError
from protofed.experiments.encoding import encode
from protofed.experiments.hardware import Hardware
from protofed.experiments.loading import load_data
from protofed.models.encoders import EncoderOptions
from protofed.rounds.loop import Federation
from protofed.runs.rules import main_rule
from protofed.samples import FederatedData
from protofed.text import size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CASES = (
    "fedlda-scattering",
    "fedlda-random",
    "fed3r-random",
    "fedncm-random",
    "fedproto-cnn2",
    "fedtgp-cnn2",
    "lg_fedavg-cnn2",
    "fml-cnn2",
)
OURS = "protofed"
SMOOTHED = 3  #: Rounds over whose mean the accuracy is taken, so that one lucky round does not end a run


@dataclass(frozen=True)
class Course:
    """The course of one run."""

    accuracy: Sequence[float]  #: Fraction of all test samples after each round
    #: Since the start, at the end of each round: of ours, with features, models and clients
    seconds: Sequence[float]
    #: Sent so far by all parties, with the broadcast that clients were scored with; empty if unknown
    bytes: Sequence[int]
    steps: int  #: Gradient steps in a round

    def reached(self, target: float) -> int | None:
        """Return the first round from 1 whose smoothed accuracy is at least ``target``; None if there is none."""
        for round_number in range(1, len(self.accuracy) + 1):
            if statistics.fmean(self.accuracy[max(0, round_number - SMOOTHED) : round_number]) >= target:
                return round_number
        return None

    def figures(self, target: float) -> dict[str, Any]:
        """Return the course and where it reached ``target``, as plain values."""
        round_number = self.reached(target)
        at = None if round_number is None else round_number - 1
        return {
            "accuracy": list(self.accuracy),
            "seconds": list(self.seconds),
            "bytes": list(self.bytes),
            "steps": self.steps,
            "rounds_until": round_number,
            "seconds_until": None if at is None else self.seconds[at],
            "steps_until": None if round_number is None else round_number * self.steps,
            "bytes_until": self.bytes[at] if at is not None and self.bytes else None,
        }


def check_until(request: Request) -> None:
    """Raise ProtofedError unless there are such cases, and the peer, if one is given, supports them."""
    experiments = [_experiment(name, request, request.seeds[0]) for name in request.cases or CASES]
    if request.peer is not None:
        check_supported(request, [each for each in experiments if not each.encoder.name])


def until(request: Request, note: Note) -> Iterator[Result]:
    """Run every case with every seed until the target is reached, or for ``limit`` rounds."""
    figures = []
    for name in request.cases or CASES:
        found: dict[str, list[dict[str, Any]]] = {}
        for seed in request.seeds:
            experiment = _experiment(name, request, seed)
            federated = load_data(replace(experiment, encoder=EncoderOptions()))
            note(f"{name}, seed {seed}, {OURS}")
            courses = {OURS: _ours(experiment, federated, request.target)}
            if request.peer is not None and not experiment.encoder.name:  # it has none
                note(f"{name}, seed {seed}, {PEER}")
                courses[PEER] = _peers(experiment, federated, request)
            for library, course in courses.items():
                found.setdefault(library, []).append({"seed": seed, **course.figures(request.target)})
        figures.append({"case": name, "target": request.target, "limit": request.limit, "runs": found})
        yield Result(_table(figures, request), figures, partial(draw_courses, figures))


def _experiment(name: str, request: Request, seed: int) -> Experiment:
    chosen = replace(as_peer(name, request, rounds=request.limit), seed=seed)
    traits = methods.get(chosen.method).traits(chosen.method_options)
    if traits.rounds == "one":
        chosen = replace(chosen, rounds=1)
    return replace(chosen, execution=replace(chosen.execution, executor="auto"))


def _ours(experiment: Experiment, federated: FederatedData, target: float) -> Course:
    accuracy: list[float] = []
    seconds: list[float] = []
    sent: list[int] = []
    start = time.perf_counter()
    features = encode(federated, experiment.encoder, experiment.execution.weights_dir, kept=False)
    with closing(Rounds(experiment, Hardware.of(experiment.execution), federated=features)) as rounds:
        before = 0
        trains = rounds.federation.method.round(1).phases
        steps = steps_per_round(experiment, federated)[OURS] if trains else 0
        for _ in range(experiment.rounds):
            record = rounds.run()
            assert record.accuracy is not None
            accuracy.append(record.accuracy.weighted[main_rule(record.accuracy.weighted)])
            seconds.append(time.perf_counter() - start)
            before += record.sent
            sent.append(before + _broadcast(rounds.federation))
            course = Course(accuracy, seconds, sent, steps)
            if course.reached(target):
                break
    return course


def _broadcast(federation: Federation) -> int:
    """Return the bytes of the broadcasts with which all clients were scored after the last round."""
    method, schema, whole = federation.method, federation.method.broadcast_schema, 0
    if schema is not None:
        for name in federation.names:
            payload = method.broadcast(federation.server, federation.round + 1, name)
            whole += 0 if payload is None else len(federation.codec.encode(payload, schema))
    return whole


def _peers(experiment: Experiment, federated: FederatedData, request: Request) -> Course:
    """Run the peer for as many rounds as planned: it cannot be told to stop."""
    with tempfile.TemporaryDirectory(prefix="protofed-peer-") as folder:
        htfllib = Peer(checkout(request), Path(folder))
        htfllib.write(federated)
        threads = request.threads[0] if request.threads else cores()
        seconds, accuracy = htfllib.run(experiment, federated, rounds=experiment.rounds, threads=threads)
    if len(accuracy) != len(seconds):
        raise ConfigError(
            f"--peer {request.peer}: {len(accuracy)} accuracies in {len(seconds)} rounds: another version of "
            f"{PEER}?"
        )
    spent = [sum(seconds[: i + 1]) for i in range(len(seconds))]
    # It scores at the start of a round what the rounds before have trained.
    return Course(accuracy[1:], spent[:-1], [], steps_per_round(experiment, federated)[PEER])


@apply_theme
def draw_courses(figures: Sequence[dict[str, Any]]) -> Figure:
    """Draw accuracy against seconds and, where counted, against bytes: a line per case, library and seed."""
    fig, axes = panels(2)
    styles = method_styles([_method(row["case"]) for row in figures])
    shown: list[float] = []
    spans: tuple[list[float], list[float]] = ([], [])
    for row in figures:
        for library, runs in row["runs"].items():
            colour = styles[_method(row["case"])].colour
            line: dict[str, Any] = {"color": colour, "linestyle": "-" if library == OURS else ":", "alpha": 0.8}
            label = f"{row['case']}, {library}"
            for run in runs:
                accuracy = [100 * value for value in run["accuracy"]]
                shown += accuracy
                sent = [number / 1e6 for number in run["bytes"]] if any(run["bytes"]) else []
                for ax, places, span in zip(axes, (run["seconds"], sent), spans, strict=True):
                    if places:
                        ax.plot(places, accuracy, label=label, **line)
                        span += places
    for ax, what, span in zip(axes, ("Seconds", "MB sent, up and down"), spans, strict=True):
        if span:
            log_axis(ax, "x", (0.9 * min(span), 1.1 * max(span)))
        for target in {row["target"] for row in figures}:
            ax.axhline(100 * target, color="0.5", linewidth=0.8)
        ax.set_xlabel(what)
        percent_axis(ax, shown, "Accuracy on all test samples (%)")
    legend_below(fig, axes)
    return fig


def _method(case: str) -> str:
    return case.partition("-")[0]


def _table(figures: Sequence[dict[str, Any]], request: Request) -> Table:
    table = new_table(
        f"Until {100 * request.target:g} % of all test samples (mean of up to {SMOOTHED} rounds), median of "
        f"{len(request.seeds)} seeds",
        f"not reached: not within {request.limit} rounds. {PEER} does not count its bytes.",
        *("", "seconds", "rounds", "steps", "bytes", "best"),
    )
    for row in figures:
        table.add_row(f"[bold]{row['case']}[/]")
        for library, runs in row["runs"].items():
            best = statistics.median(max(run["accuracy"]) for run in runs)
            cells = (
                _median(runs, "seconds_until", "{:.1f}".format),
                _median(runs, "rounds_until", "{:.0f}".format),
                _median(runs, "steps_until", "{:,.0f}".format),
                _median(runs, "bytes_until", lambda sent: size(int(sent))) if library == OURS else "–",
                f"{100 * best:.1f} %",
            )
            table.add_row(library, *cells)
        table.add_section()
    return table


def median(values: Sequence[float | None]) -> float | None:
    """Return the median over seeds, in which None, a target that was not reached, counts as longer than all."""
    longest = float("inf")
    found = sorted(longest if value is None else value for value in values)[len(values) // 2]
    return None if found == longest else found


def _median(runs: Sequence[dict[str, Any]], name: str, write: Callable[[float], str]) -> str:
    value = median([run[name] for run in runs])
    return "not reached" if value is None else write(value)
