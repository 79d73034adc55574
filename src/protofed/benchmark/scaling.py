"""Benchmark of growing numbers of clients: seconds per round and peak memory, each size in its own process."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from typing import Any

import torch
from rich import box
from rich.table import Table

from protofed.benchmark.cases import refuse
from protofed.benchmark.request import Note, Request, Result
from protofed.data.loading import load_pool
from protofed.experiments.assemble import assemble
from protofed.experiments.config import Experiment, Tree, apply_overrides, resolve
from protofed.experiments.executors import PRELOAD
from protofed.experiments.hardware import Hardware
from protofed.experiments.memory import PeakMemory
from protofed.formats import size as in_bytes
from protofed.samples import ClientData, FederatedData, Samples
from protofed.seeding import generator
from protofed.training import Files
from protofed.training.workers import process_context, stay_with_parent

BASE: Tree = {
    "recipe": "scaling",
    "data": {"source": "digits"},
    "model": {"name": "resnet8", "d": 512},
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


def scaling(request: Request, note: Note) -> Result:
    """Measure federations of several sizes with the same number of samples per client.

    Args:
        request: Settings of the benchmark.
        note: Callback for progress messages.
    """
    tree = _tree(request)
    figures = []
    for clients in request.clients:
        note(f"{clients} clients")
        # A process that ran a smaller federation would retain some of its memory.
        with ProcessPoolExecutor(1, process_context(PRELOAD), stay_with_parent) as pool:
            figures.append(pool.submit(measure_size, tree, clients, request.per_client).result())
    return Result(_table(figures, request), figures)


def _tree(request: Request) -> Tree:
    refuse(request.overrides, OWN)
    return apply_overrides(BASE, {**request.overrides, "rounds": request.rounds + 1})


def measure_size(tree: Tree, clients: int, per_client: int) -> dict[str, Any]:
    """Measure one federation.

    Args:
        tree: Options of the experiment.
        clients: Number of clients.
        per_client: Number of samples per client.

    Returns:
        Seconds of each round, memory in bytes, and the settings, as plain values.
    """
    experiment = resolve(tree)
    hardware = Hardware.of(experiment.execution)
    memory = PeakMemory(hardware.device)
    before = memory.bytes()
    federation, _ = assemble(experiment, alike(experiment, clients, per_client), hardware=hardware)
    with closing(federation.executor):
        store = "disk" if isinstance(federation.executor.clients.store, Files) else "memory"
        seconds = [record.seconds["total"] for record in federation.run()]
        description = federation.executor.description()
    return {
        "clients": clients,
        "samples_per_client": per_client,
        "model": experiment.model.name,
        "data": experiment.data.source,
        "clients_in": store,
        **description,
        "first_round": seconds[0],
        "seconds": seconds[1:],
        "memory_before_bytes": before,
        "peak_memory_bytes": memory.bytes(),
    }


def alike(experiment: Experiment, clients: int, per_client: int) -> FederatedData:
    """Return a federation with the same number of samples per client.

    Args:
        experiment: Experiment from whose data samples are drawn with replacement.
        clients: Number of clients.
        per_client: Number of samples per client, training and test samples together.
    """
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
    table = Table(
        title=f"Scaling: seconds per round, median of {request.rounds}; {first['model']} on {first['data']}, "
        f"{request.per_client} samples per client",
        caption=f"Ratios are to {first['clients']} clients. Memory is that of the main process; from start: "
        "without the memory taken by imports.",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    for heading in ("clients", "stored in", "s/round", "ms/client", "ratio", "peak memory", "ratio", "from start"):
        table.add_column(heading, justify="left" if heading == "stored in" else "right")
    start = statistics.median(first["seconds"]) / first["clients"]
    for row in figures:
        seconds = statistics.median(row["seconds"])
        each = seconds / row["clients"]
        table.add_row(
            str(row["clients"]),
            row["clients_in"],
            f"{seconds:.3g}",
            f"{1e3 * each:.3g}",
            f"{each / start:.2f}",
            in_bytes(row["peak_memory_bytes"]),
            f"{row['peak_memory_bytes'] / first['peak_memory_bytes']:.2f}",
            in_bytes(row["peak_memory_bytes"] - row["memory_before_bytes"]),
        )
    return table
