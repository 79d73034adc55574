"""Benchmark against HtFLlib with the same clients, samples, models, batch size and learning rate."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.cases import case_experiment
from benchmarks.htfllib import AS_PEER, PEER, Peer, check_checkout, check_data, check_experiment, steps_per_round
from benchmarks.ours import our_variants
from benchmarks.request import Note, Request, Result, new_table
from benchmarks.timing import Timings, take_turns, thread_counts
from protofed.config.schema import Experiment
from protofed.errors import ConfigError
from protofed.experiments.hardware import Hardware
from protofed.experiments.loading import load_data

CASES = ("fedproto-light4", "fedproto-cnn2", "fedtgp-cnn2", "fedmrl-cnn2", "fedl2g-cnn2")


def check_peer(request: Request) -> None:
    """Raise ProtofedError unless there is a checkout of HtFLlib and it supports every case."""
    check_supported(request, list(_experiments(request).values()))


def check_supported(request: Request, experiments: Sequence[Experiment]) -> None:
    """Raise ProtofedError unless there is a checkout of HtFLlib that supports the experiments and their data."""
    checkout(request)
    for experiment in experiments:
        check_experiment(experiment)
    for experiment in experiments:
        check_data(experiment, load_data(experiment))


def peer(request: Request, note: Note) -> Iterator[Result]:
    """Time HtFLlib in separate processes, for each number of threads, and the executors of this package."""
    figures = []
    for name, chosen in _experiments(request).items():
        figures.append(_measure(name, chosen, request, note))
        yield Result(_table(figures, request.rounds), figures)


def checkout(request: Request) -> Path:
    """Return the folder of the peer."""
    if request.peer is None:
        raise ConfigError("bench peer needs --peer DIR, the folder of a clone of github.com/TsingZ0/HtFLlib")
    check_checkout(request.peer)
    return request.peer


def _experiments(request: Request) -> dict[str, Experiment]:
    return {name: as_peer(name, request, rounds=1) for name in request.cases or CASES}


def as_peer(name: str, request: Request, *, rounds: int) -> Experiment:
    """Return the experiment of a case, with options by which it does what the peer's does."""
    plain = case_experiment(name, request.overrides, rounds=rounds)
    return case_experiment(name, request.overrides, rounds=rounds, also=AS_PEER.get(plain.method))


def _measure(name: str, experiment: Experiment, request: Request, note: Note) -> dict[str, Any]:
    note(f"{name}, loading")
    federated = load_data(experiment)
    hardware = Hardware.of(experiment.execution)
    counts = thread_counts(hardware.device, request.threads)
    experiment = replace(experiment, rounds=(request.rounds + 1) * len(counts))
    seconds: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="protofed-peer-") as folder:
        htfllib = Peer(checkout(request), Path(folder))
        htfllib.write(federated)
        for threads in counts:
            note(f"{name}, {PEER}, {threads} thread{'s' if threads > 1 else ''}")
            spent, _ = htfllib.run(experiment, federated, rounds=request.rounds, threads=threads)
            seconds[PEER, threads] = spent[1:]
    with ExitStack() as stack:
        _, variants = our_variants(experiment, hardware, counts, request.processes, stack)
        ours = take_turns(variants, request.rounds, lambda text: note(f"{name}, {text}"))
    timings = Timings({**seconds, **ours.seconds})
    medians = {n: timings.median(n, timings.best(n)) for n in timings.names}
    return {
        "case": name,
        "steps": steps_per_round(experiment, federated),
        "seconds": timings.figures(),
        "threads": {n: timings.best(n) for n in timings.names},
        "medians": medians,
        "ratios": {n: medians[PEER] / median for n, median in medians.items() if n != PEER},
    }


def _table(figures: list[dict[str, Any]], rounds: int) -> Table:
    table = new_table(
        f"Against {PEER}: seconds per round, median of {rounds}, and ratio of its time to each variant's",
        "Each with its best number of threads; sequential and workers are ours. The peer drops the last "
        "partial batch of each epoch and therefore takes fewer steps.",
        *("", "steps", "threads", "s per round", f"{PEER} / this"),
    )
    for row in figures:
        table.add_row(f"[bold]{row['case']}[/]")
        for name, median in row["medians"].items():
            ratio = row["ratios"].get(name, 1.0)
            steps = row["steps"][PEER if name == PEER else "protofed"]
            table.add_row(name, str(steps), str(row["threads"][name]), f"{median:.3g}", f"{ratio:.2f}")
        table.add_section()
    return table
