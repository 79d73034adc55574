"""Assembly of a federation that is ready to run from a configuration."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import torch

from protofed.config.schema import Experiment
from protofed.errors import CheckpointError, ConfigError
from protofed.experiments import stages
from protofed.experiments.builder import Builder
from protofed.experiments.ending import client_model, read_server
from protofed.experiments.executors import build_executor
from protofed.experiments.hardware import Hardware
from protofed.experiments.loading import load_data
from protofed.rounds.evaluation import Evaluation
from protofed.rounds.loop import Federation
from protofed.rounds.participation import Participation
from protofed.rounds.state import ServerState
from protofed.runs.border import Border
from protofed.runs.loading import load_run
from protofed.runs.run import Run
from protofed.samples import FederatedData
from protofed.stages.secure.stage import Conduct
from protofed.storage.files import read_tensors
from protofed.visits.client import check_optimizers
from protofed.visits.contract import Executor
from protofed.visits.visit import LocalTrainer


def assemble(
    experiment: Experiment,
    federated: FederatedData | None = None,
    bfloat16: Collection[str] | None = None,
    hardware: Hardware | None = None,
    pretrained: bool = True,
    draws: int | None = None,
) -> tuple[Federation, FederatedData]:
    """Build the method, the clients and the engine; the caller closes ``federation.executor``.

    Args:
        bfloat16: Kinds of models that a resumed run computes in bfloat16; measured by default, with
            ``execution.precision=bf16``.
        draws: Seed of draws after the initial weights; the experiment's by default.
    """
    hardware = hardware or Hardware.of(experiment.execution)
    federated = hardware.place(federated or load_data(experiment))
    if experiment.execution.threads:
        torch.set_num_threads(experiment.execution.threads)
    builder = Builder(experiment, federated, hardware, pretrained=pretrained, draws=draws)
    executor = build_executor(experiment, hardware, builder, bfloat16)
    try:
        builder.fill(executor.clients)
        federation = build_federation(experiment, builder.trainer, executor, ServerState())
        if experiment.model.start:
            start_from(Path(experiment.model.start), federation)
    except BaseException:
        executor.close()
        raise
    return federation, federated


def start_from(directory: Path, federation: Federation) -> None:
    """Give clients the weights with which those of the same names ended a run; others keep their initial weights.

    The networks and the server's state of the same method are taken over as well.

    Raises:
        CheckpointError: If there is no such run, none of its clients is here, or a model does not fit.
        ConfigError: If the method would replace the clients' weights by the server's own.
    """
    run, clients = load_run(directory), federation.executor.clients
    names = [c.name for c in run.clients if c.name in clients and run.finished]
    if not names or not clients.rests_here:
        why = "the run has not finished" if not run.finished else "none of its clients is in this federation"
        raise CheckpointError(f"model.start: {directory}: {why if clients.rests_here else 'use --engine local'}")
    for name in names:
        _take_over(run, name, federation)
    method, server = federation.method, read_server(directory)
    shapes = {n: t.shape for n, t in federation.server.items()}
    if run.method == method.name and {n: t.shape for n, t in server.items()} == shapes:
        federation.state.tensors = server
    elif method.declared.exchanges in ("part of the weights", "all weights"):
        raise ConfigError(
            f"model.start: {method.name} begins with the server's weights, and {directory} has none: "
            f"start from a run of {method.name} with the same model"
        )


def _take_over(run: Run, name: str, federation: Federation) -> None:
    path, clients = client_model(run.directory, name), federation.executor.clients
    if Border(run.directory).signature(path) is None:
        raise CheckpointError(f"{path}: missing")
    weights, snapshot = read_tensors(path), clients.snapshot(name)
    shared = {n: t for n, t in weights.items() if n in snapshot.model and snapshot.model[n].shape == t.shape}
    lacking = [n for n in snapshot.model if n not in shared and not n.startswith("extras.")]
    if lacking:
        raise CheckpointError(f"{path}: does not fit the model of {name} ({lacking[0]})")
    clients.replace(name, snapshot._replace(model=snapshot.model | shared))


def build_federation(
    experiment: Experiment,
    trainer: LocalTrainer,
    executor: Executor,
    state: ServerState | None = None,
    conduct: Conduct | None = None,
) -> Federation:
    """Return a federation before its first round."""
    method = trainer.method
    hostile = stages.attackers(experiment, trainer, executor)
    guard = stages.guard(experiment, trainer, executor, hostile)
    participation = Participation(
        experiment.participation, method, executor, experiment.rounds, trainer.seed, guard.counts
    )
    evaluation = Evaluation(experiment.evaluation, method, executor)
    check_optimizers(method, executor.clients, experiment.rounds)
    found = stages.stages(experiment, trainer, participation, hostile, guard, conduct)
    return Federation(method, trainer.codec, executor, participation, evaluation, found, state or ServerState())
