"""Benchmark of the engine against a bare PyTorch loop, and of several processes against one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace

from rich.table import Table

from benchmarks.bare import BareLoop, check_method
from benchmarks.cases import case_experiment
from benchmarks.ours import SEQUENTIAL, Rounds, our_variants
from benchmarks.request import Note, Request, Result, new_table
from benchmarks.timing import Timings, Variant, take_turns, thread_counts
from protofed.config.schema import Experiment
from protofed.experiments.hardware import Hardware
from protofed.experiments.loading import load_data

CASES = ("fedproto-light4", "fedproto-cnn2")
BARE = "bare loop"
REDUCED = "bare loop, reduced"
ONE_THREAD = f"{SEQUENTIAL}, 1 thread"


def check_overhead(request: Request) -> None:
    """Raise ProtofedError if a case cannot be measured, e.g. because its data are missing."""
    for experiment in _experiments(request).values():
        check_method(experiment)
        load_data(experiment)


def overhead(request: Request, note: Note) -> Iterator[Result]:
    """Time rounds of the engine and of a bare loop in turn, in this process, for each number of threads."""
    timings: dict[str, Timings] = {}
    figures = []
    for name, chosen in _experiments(request).items():
        timings[name] = found = _measure(name, chosen, request, note)
        ratios = {variant: _ratios(found, variant) for variant in found.names}
        figures.append({"case": name, "seconds": found.figures(), "ratios": ratios})
        yield Result(_table(timings, request.rounds), figures)


def _experiments(request: Request) -> dict[str, Experiment]:
    return {name: case_experiment(name, request.overrides, rounds=1) for name in request.cases or CASES}


def _measure(name: str, experiment: Experiment, request: Request, note: Note) -> Timings:
    note(f"{name}: loading")
    hardware = Hardware.of(experiment.execution)
    counts = thread_counts(hardware.device, request.threads)
    experiment = replace(experiment, rounds=(request.rounds + 1) * len(counts))
    with ExitStack() as stack:
        ours, variants = our_variants(experiment, hardware, counts, request.processes, stack)
        reduces = experiment.execution.convolutions == "auto" and hardware.device.type == "cpu"  # the engine
        for label in (BARE, REDUCED) if reduces else (BARE,):
            loop = BareLoop(experiment, ours.federated, hardware, reduced=label == REDUCED)
            loop.load(ours.federation)
            variants += [_bare(label, loop, ours, threads) for threads in counts]
        # Variants that are compared most closely run next to each other.
        variants.sort(key=lambda variant: (variant.name not in (SEQUENTIAL, BARE, REDUCED), variant.threads))
        return take_turns(variants, request.rounds, lambda text: note(f"{name}, {text}"))


def _bare(label: str, loop: BareLoop, ours: Rounds, threads: int) -> Variant:
    federation = ours.federation
    return Variant(label, threads, lambda: loop.prepare(federation.server, federation.round), loop.run)


def _ratios(timings: Timings, name: str) -> dict[str, float]:
    """Return the ratios of the time of ``name`` to the times of the other variants that were measured."""
    to = {
        BARE: timings.ratio(name, BARE),
        REDUCED: timings.ratio(name, REDUCED),
        SEQUENTIAL: timings.ratio(name, SEQUENTIAL),
        ONE_THREAD: timings.ratio(name, SEQUENTIAL, threads=1),
    }
    return {other: ratio for other, ratio in to.items() if ratio is not None}


def _table(cases: Mapping[str, Timings], rounds: int) -> Table:
    counts = sorted({threads for timings in cases.values() for _, threads in timings.seconds})
    threads = (f"{count} thread{'s' if count > 1 else ''}" for count in counts)
    table = new_table(
        f"Overhead: seconds per round, median of {rounds}, and ratios to other variants",
        "Ratios are medians over rounds run in turn, each variant with its best number of threads "
        "(seq. 1: one thread). The bare loop has the same models, batches, optimiser, prototypes and predictions "
        "and nothing else; reduced: with small convolutions computed as in the engine.",
        *("", *threads, "/ bare", "/ reduced", "/ seq.", "/ seq. 1"),
    )
    for case, timings in cases.items():
        table.add_row(f"[bold]{case}[/]")
        for name in sorted(timings.names, key=lambda name: name not in (BARE, REDUCED)):
            medians = [timings.median(name, t) if (name, t) in timings.seconds else None for t in counts]
            ratios = _ratios(timings, name)
            table.add_row(
                name,
                *("–" if m is None else f"{m:.3g}" for m in medians),
                *(f"{ratios[to]:.2f}" if to in ratios else "–" for to in (BARE, REDUCED, SEQUENTIAL, ONE_THREAD)),
            )
        table.add_section()
    return table
