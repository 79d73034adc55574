"""Benchmark of growing numbers of clients: time, memory, checkpoint and report, each size in its own process."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from typing import Any

import torch
from rich.table import Table

from benchmarks.cases import refuse
from benchmarks.request import Note, Request, Result, new_table
from protofed.analysis.report import write_report
from protofed.compute.seeding import generator
from protofed.config.schema import Experiment, Tree, apply_overrides, resolve
from protofed.data.loading import load_pool
from protofed.experiments.assemble import assemble
from protofed.experiments.description import describe_clients
from protofed.experiments.hardware import Hardware
from protofed.experiments.memory import PeakMemory, TreeMemory
from protofed.experiments.rundir import RunDirectory
from protofed.experiments.running import summary_of
from protofed.samples import ClientData, FederatedData, Samples
from protofed.storage import scratch
from protofed.storage.processes import process_context
from protofed.text import size as in_bytes
from protofed.visits.roster import Files
from protofed.visits.workers import stay_with_parent

BASE: Tree = {
    "recipe": "scaling",
    "data": {"source": "digits"},
    "model": {"name": "cnn2", "d": 512},
    "training": {"batch_size": 32, "lr": 0.01},
    "method": {"name": "fedproto"},
    "execution": {"executor": "sequential"},
    "checkpoint": {"every": 0},
}
OWN = {"rounds": "--rounds", "data.clients": "--clients", "data.samples": "--per-client"}


def check_scaling(request: Request) -> None:
    """Raise ProtofedError if the options or the data are invalid."""
    experiment = resolve(_tree(request))
    alike(experiment, 1, request.per_client)


def scaling(request: Request, note: Note) -> Iterator[Result]:
    """Measure federations of several sizes with the same number of samples per client."""
    tree = _tree(request)
    figures = []
    for clients in request.clients:
        note(f"{clients} clients")
        # A process that ran a smaller federation would retain some of its memory.
        with ProcessPoolExecutor(1, process_context(), stay_with_parent) as pool:
            figures.append(pool.submit(measure_size, tree, clients, request.per_client, request.rounds).result())
        yield Result(_table(figures, request), figures)


def _tree(request: Request) -> Tree:
    refuse(request.overrides, OWN)
    return apply_overrides(BASE, {**request.overrides, "rounds": request.rounds + 2})


def measure_size(tree: Tree, clients: int, per_client: int, rounds: int) -> dict[str, Any]:
    """Measure one federation, from its start to its report.

    Args:
        rounds: Number of rounds to measure, which follow a warm-up round; one with a checkpoint comes after them.

    Returns:
        Seconds of each part, sizes in bytes, and the settings, as plain values.
    """
    experiment = resolve(tree)
    hardware = Hardware.of(experiment.execution)
    before = PeakMemory(hardware.device).bytes()
    path = scratch.subfolder("scaling")
    files = RunDirectory(path)
    try:
        with TreeMemory() as memory:
            start = time.perf_counter()
            federation, federated = assemble(experiment, alike(experiment, clients, per_client), hardware=hardware)
            with closing(federation.executor), files.saving:
                store = "disk" if isinstance(federation.executor.clients.store, Files) else "memory"
                files.check_room(federation, every=1)
                files.open(experiment, resume=False)
                files.write_federation(describe_clients(federation, federated))
                started = time.perf_counter() - start
                records = []
                for record in federation.run():
                    records.append(record)
                    files.add_round(record, federation, every=0)
                    if len(records) == rounds + 1:
                        checkpoint = time.perf_counter()
                        files.saving.save(federation.state, federation.executor.clients)
                files.saving.wait()
                checkpoint = time.perf_counter() - checkpoint
                written = sum(file.stat().st_size for file in files.checkpoints.rglob("*") if file.is_file())
                start = time.perf_counter()
                summary = summary_of(experiment, federation.method, records, len(federation.names), {})
                files.finish(federation, summary)
                finished = time.perf_counter() - start
                description = federation.executor.description()
            peak = memory.peak
            start = time.perf_counter()
            write_report([path], path / "report.html")
            report = time.perf_counter() - start
        size = (path / "report.html").stat().st_size
    finally:
        shutil.rmtree(path, ignore_errors=True)
    seconds = [record.seconds["total"] for record in records[1 : rounds + 1]]
    return {
        "clients": clients,
        "samples_per_client": per_client,
        "model": experiment.model.name,
        "data": experiment.data.source,
        "clients_in": store,
        **description,
        "start": started,
        "first_round": records[0].seconds["total"],
        "seconds": seconds,
        "checkpoint": checkpoint - statistics.median(seconds),
        "checkpoint_bytes": written,
        "finish": finished,
        "report": report,
        "report_bytes": size,
        "memory_before_bytes": before,
        "peak_memory_bytes": max(peak, before),
        "peak_memory_with_report_bytes": max(memory.peak, before),
    }


def alike(experiment: Experiment, clients: int, per_client: int) -> FederatedData:
    """Return a federation with ``per_client`` samples each, training and test, drawn with replacement."""
    pool = load_pool(experiment.data, experiment.seed)
    tests = round(experiment.data.test_fraction * per_client)

    def take(rows: torch.Tensor) -> Samples:
        return Samples(pool.x[rows], pool.y[rows])

    def client(number: int) -> ClientData:
        random = generator(experiment.seed, "scaling", number)
        rows = torch.randint(len(pool.y), (per_client,), generator=random)
        return ClientData(f"client-{number:05d}", take(rows[tests:]), take(rows[:tests]))

    everyone = tuple(client(number) for number in range(clients))
    return FederatedData(everyone, len(pool.class_names), pool.class_names, tuple(pool.x.shape[1:]))


def _table(figures: Sequence[Mapping[str, Any]], request: Request) -> Table:
    first = figures[0]
    table = new_table(
        f"Scaling: seconds per round, median of {request.rounds}; {first['model']} on {first['data']}, "
        f"{request.per_client} samples per client",
        f"Ratio: time per client, to {first['clients']} clients. Checkpoint: time that one written beside "
        "a round adds to it. Memory: of all processes, before the report.",
    )
    headings = (
        "clients",
        "stored in",
        "start",
        "s/round",
        "ms/client",
        "ratio",
        "checkpoint",
        "memory",
        "report",
        "",
    )
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "stored in" else "right")
    base = statistics.median(first["seconds"]) / first["clients"]
    for row in figures:
        seconds = statistics.median(row["seconds"])
        each = seconds / row["clients"]
        table.add_row(
            str(row["clients"]),
            row["clients_in"],
            f"{row['start']:.3g} s",
            f"{seconds:.3g}",
            f"{1e3 * each:.3g}",
            f"{each / base:.2f}",
            f"{100 * row['checkpoint'] / seconds:.0f} %",
            in_bytes(row["peak_memory_bytes"]),
            f"{row['report']:.2g} s",
            in_bytes(row["report_bytes"]),
        )
    return table
