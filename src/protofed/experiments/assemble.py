"""From a configuration to a federation that is ready to run."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Collection, Mapping
from functools import lru_cache, partial

import torch

from protofed import claims, data, models
from protofed.experiments.config import Experiment, Tree
from protofed.experiments.workshop import device_count, device_of, fill, is_code, open_workshop, place
from protofed.federation import Federation
from protofed.options import build_options, plain
from protofed.robust import Attackers
from protofed.samples import FederatedData
from protofed.training import Executor, Files, Fused, LocalTrainer, Memory, Roster, Sequential, Store, Workers
from protofed.training.calibration import faster_in_bfloat16
from protofed.training.workers import shared_folder

LARGE = 2**30
"""Bytes of clients' models beyond which they rest on disk."""
LONG = 1e12
"""Multiply-adds from which on starting processes pays: some two minutes of one core."""


def load_data(experiment: Experiment) -> FederatedData:
    """Return the clients' data; the last one loaded is kept, so that a comparison loads once."""
    key = (plain(experiment.data), experiment.partition, plain(experiment.partition_options), experiment.seed)
    return _load_data(json.dumps(key, sort_keys=True))


@lru_cache(maxsize=2)
def _load_data(key: str) -> FederatedData:
    options, partition, partition_options, seed = json.loads(key)
    kind = data.partitions.get(partition)
    return data.load(
        build_options(data.DataOptions, {k: v for k, v in options.items() if v is not None}, "data"),
        partition,
        build_options(kind.Options, partition_options, "partition"),
        seed,
    )


def assemble(
    experiment: Experiment, federated: FederatedData | None = None, bfloat16: Collection[str] | None = None
) -> tuple[Federation, FederatedData]:
    """Build the method, the clients and the engine; close ``federation.executor`` when done with it.

    Args:
        experiment: What to run.
        federated: The clients' data; by default what the experiment's ``data`` and ``partition`` sections say.
        bfloat16: Kinds of models for which bfloat16 was found faster before, so that a run goes on as it began;
            by default it is measured (with ``execution.precision=bf16`` alone).

    Raises:
        ProtofedError: For anything that does not fit, before any training.
    """
    federated = place(experiment, federated or load_data(experiment))
    if experiment.execution.threads:
        torch.set_num_threads(experiment.execution.threads)
    trainer, roster = open_workshop(experiment, federated, Memory(), bfloat16 or ())
    if experiment.execution.precision == "bf16" and bfloat16 is None:
        for kind in faster_in_bfloat16(roster):
            roster.models[kind].in_bfloat16 = True
    executor = _executor(experiment, federated, trainer, roster)
    try:
        fill(experiment, federated, trainer.method, executor.clients)
        federation = found(experiment, trainer, executor)
    except BaseException:
        executor.close()
        raise
    return federation, federated


def found(experiment: Experiment, trainer: LocalTrainer, executor: Executor) -> Federation:
    """Return the federation of the clients that ``executor`` runs, before its first round."""
    return Federation(
        trainer.method,
        trainer.codec,
        executor,
        experiment.rounds,
        experiment.seed,
        experiment.participation,
        experiment.evaluation,
        experiment.robust,
        Attackers(experiment.attack, trainer, executor.clients) if experiment.attack.kind != "none" else None,
    )


def _executor(experiment: Experiment, federated: FederatedData, trainer: LocalTrainer, roster: Roster) -> Executor:
    """Return the executor asked for, with the store that suits it."""
    execution = experiment.execution
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    at_work = sum(1 for m in roster.members.values() if len(m.train))
    processes = max(1, min(execution.workers or cores // max(1, execution.threads), at_work))
    executor = execution.executor
    if executor == "auto" and device_of(experiment).type == "cuda":
        executor = "fused"
    elif executor == "auto":
        executor = "workers" if processes > 1 and _worth_processes(experiment, federated, roster) else "sequential"
    devices = min(device_count(experiment), len(roster)) if executor == "fused" else 1
    if executor == "workers" or devices > 1:
        roster.store = Files(shared_folder())
        processes = processes if executor == "workers" else devices
        return Workers(
            partial(_bench, experiment, executor, [k for k, m in roster.models.items() if m.in_bfloat16]),
            federated,
            roster,
            processes=processes,
            threads=execution.threads or max(1, cores // processes),
            together=executor == "fused",
        )
    roster.store = resting_place(experiment, roster)
    if executor == "fused":
        return _fused(experiment, trainer, roster, device_of(experiment))
    return Sequential(trainer, roster)


def resting_place(experiment: Experiment, roster: Roster) -> Store:
    """Return the store in which clients rest that are visited by this process: on disk if they are large."""
    size = sum(models.parameter_bytes(roster.models[m.kind]) for m in roster.members.values())
    wanted = experiment.execution.clients_in
    return Files(shared_folder()) if wanted == "disk" or (wanted == "auto" and size > LARGE) else Memory()


def _bench(
    experiment: Experiment, executor: str, low: Collection[str], federated: FederatedData, store: Files, number: int
) -> Executor:
    """Return what process ``number`` works with: its clients one by one, or stepping together on its device."""
    device = device_of(experiment)
    if executor == "fused" and device.type == "cuda":
        device = torch.device("cuda", number)
        torch.cuda.set_device(device)
    trainer, roster = open_workshop(experiment, place(experiment, federated, device), store, low, device)
    return _fused(experiment, trainer, roster, device) if executor == "fused" else Sequential(trainer, roster)


def _fused(experiment: Experiment, trainer: LocalTrainer, roster: Roster, device: torch.device) -> Fused:
    """Return the executor of stacks; where nobody asked for it, its first steps are checked."""
    return Fused(trainer, roster, _budget(experiment, device), check=experiment.execution.executor == "auto")


def _budget(experiment: Experiment, device: torch.device) -> float:
    """Return the bytes that the stacks of a process may take."""
    if experiment.execution.memory_budget:
        return 1e9 * experiment.execution.memory_budget
    return 0.7 * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 4e9 / device_count(experiment)


def _worth_processes(experiment: Experiment, federated: FederatedData, roster: Roster) -> bool:
    """Whether a run is long enough to start processes for it."""
    if multiprocessing.parent_process() is not None:
        return False  # a process among several, as `compare --jobs` starts them, has its share of the cores
    each = {kind: models.multiply_adds(model, federated.input_shape) for kind, model in roster.models.items()}
    samples = [(m.kind, len(m.train) * m.plan.epochs) for m in roster.members.values()]
    return 3 * experiment.rounds * sum(each[kind] * n for kind, n in samples) >= LONG


def sizes_of(model: models.SplitModel) -> Tree:
    """Return the parameters of a client's own model and of each network its method adds, by name, and ``d``."""
    extras = {name: models.parameter_count(network) for name, network in model.extras.items()}
    own = models.parameter_count(model) - sum(extras.values())
    return {"parameters": own, "extras": {name: n for name, n in extras.items() if n}, "d": model.feature_dim}


def _models_notes(federated: FederatedData, roster: Roster) -> list[str]:
    """Say whose models are code that they name themselves, or are unknown here."""
    own = {c.name: c.settings.get("model", "") for c in federated.clients}
    used = {name: model for name, model in own.items() if roster.members[name].architecture == model}
    code = [name for name, model in used.items() if is_code(model)]
    private = [name for name, model in used.items() if model == claims.PRIVATE]
    notes = [f"Code named by client.toml was imported for the models of {', '.join(code)}."] if code else []
    if private:
        notes.append(f"Models that only their nodes know, with sizes as these state them: {', '.join(private)}.")
    return notes


def describe_clients(
    federation: Federation, federated: FederatedData, sizes: Mapping[str, Tree] | None = None
) -> Tree:
    """Return what is known of the method and the clients before training, for ``federation.json``.

    Args:
        federation: Before its first round.
        federated: The clients' data.
        sizes: As :func:`sizes_of`, of clients whose models are elsewhere.
    """
    K = federated.num_classes
    roster = federation.executor.clients
    known = dict(sizes or {})
    known |= {n: sizes_of(roster.models[m.kind]) for n, m in roster.members.items() if n not in known}
    return {
        "exchanges": federation.method.exchanges,
        "notes": [*federation.method.notes(), *_models_notes(federated, roster)],
        "class_names": list(federated.class_names),
        "input_shape": list(federated.input_shape),
        "bfloat16": [kind for kind, model in roster.models.items() if model.in_bfloat16],
        "clients": [
            {
                "name": name,
                "architecture": member.architecture,
                **known[name],
                "train": member.train.counts(K).tolist(),
                "test": member.test.counts(K).tolist(),
            }
            for name, member in roster.members.items()
        ],
    }
