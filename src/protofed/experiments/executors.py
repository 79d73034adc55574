"""Choice of the executor, and of the store that suits it."""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path

import torch

from protofed import models
from protofed.config.schema import Experiment
from protofed.experiments import memory
from protofed.experiments.builder import Builder
from protofed.experiments.calibration import faster_in_bfloat16
from protofed.experiments.hardware import Hardware
from protofed.methods import Method
from protofed.samples import FederatedData
from protofed.storage.files import check_room
from protofed.storage.processes import PRELOAD
from protofed.visits.contract import Executor
from protofed.visits.executor import Fused, Sequential
from protofed.visits.roster import Files, Memory, Roster, Store
from protofed.visits.workers import Workers, create_folder

LARGE = 2**30  #: Bytes of clients' models above which they are stored on disk
VISIT = 1e8  #: Multiply-adds that take as long as all the rest of a client's visits in a round: some milliseconds
NARROW = 128  #: Features up to which the matrices of a closed form are too small for several threads
LONG = 2e11  #: Multiply-adds above which starting processes pays off: about six seconds of one core


def bfloat16_kinds(
    experiment: Experiment, known: Collection[str] | None, roster: Callable[[], Roster]
) -> Collection[str]:
    """Return the kinds of models that are computed in bfloat16.

    Args:
        known: Kinds that the run used before it was stopped; None to measure them.
    """
    if experiment.execution.precision != "bf16":
        return ()
    return faster_in_bfloat16(roster()) if known is None else known


def build_executor(
    experiment: Experiment, hardware: Hardware, builder: Builder, bfloat16: Collection[str] | None
) -> Executor:
    """Build the executor that the experiment selects, with a suitable store."""
    execution = experiment.execution
    training = sum(1 for m in builder.members if len(m.train))
    threads = execution.threads or threads_of(builder.method)
    room = min(hardware.cores // max(1, execution.threads), memory.room())
    processes = max(1, min(execution.workers or room, training))
    executor = execution.executor
    if executor == "auto" and hardware.cuda:
        executor = "fused"
    elif executor == "auto":
        executor = "workers" if processes > 1 and _worth_processes(experiment, builder) else "sequential"
    workers = executor == "workers"
    size = builder.roster(None).size
    store = _in_files(size) if workers else resting_place(experiment, size)
    roster = builder.roster(store)
    try:
        roster.compute_in_bfloat16(bfloat16_kinds(experiment, bfloat16, lambda: roster))
        if workers:
            return Workers(
                partial(_process_executor, experiment, hardware, roster.in_bfloat16),
                builder.federated,
                roster,
                processes=processes,
                threads=threads or max(1, hardware.cores // processes),
                preload=PRELOAD,
            )
        if executor == "fused":
            return Fused(builder.trainer, roster, _budget(experiment, hardware))
        return Sequential(builder.trainer, roster)
    except BaseException:
        store.close()
        raise


def threads_of(method: Method) -> int:
    """Return the threads of a method for which more would only wait, for long on busy machines; 0 for any."""
    return int(method.declared.rounds == "one" and method.task.feature_dim <= NARROW)


def resting_place(experiment: Experiment, size: int) -> Store:
    """Return the store of the clients that this process visits: on disk if the models' bytes are many."""
    wanted = experiment.execution.clients_in
    in_files = wanted == "disk" or (wanted == "auto" and size > LARGE)
    return _in_files(size) if in_files else Memory()


def _in_files(size: int) -> Store:
    check_room(Path(tempfile.gettempdir()), size, "clients", "let TMPDIR name a folder with more room")
    return Files(create_folder())


def _process_executor(
    experiment: Experiment, hardware: Hardware, bfloat16: Collection[str], federated: FederatedData, store: Files
) -> Executor:
    """Return the executor of a process, for one client at a time."""
    builder = Builder(experiment, hardware.place(federated), hardware)
    roster = builder.roster(store)
    roster.compute_in_bfloat16(bfloat16)
    return Sequential(builder.trainer, roster)


def _budget(experiment: Experiment, hardware: Hardware) -> float:
    """Return the bytes that the stacks of a process may occupy."""
    if experiment.execution.memory_budget:
        return 1e9 * experiment.execution.memory_budget
    return 0.7 * torch.cuda.mem_get_info(hardware.device)[0] if hardware.cuda else 4e9


def _worth_processes(experiment: Experiment, builder: Builder) -> bool:
    """Return whether a run is long enough to start processes for it."""
    if multiprocessing.parent_process() is not None:
        return False  # one of several processes, as with `compare --jobs`, which share the cores
    shape = builder.federated.input_shape
    cost = {kind: models.multiply_adds(model, shape) for kind, model in builder.models.items()}
    each = sum(3 * cost[m.kind] * len(m.train) * m.plan.epochs + VISIT for m in builder.members)
    return experiment.rounds * each >= LONG
