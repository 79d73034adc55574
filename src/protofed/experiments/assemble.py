"""Assembly of a federation that is ready to run from a configuration."""

from __future__ import annotations

from collections.abc import Collection

import torch

from protofed.experiments.builder import Builder
from protofed.experiments.config import Experiment
from protofed.experiments.executors import build_executor
from protofed.experiments.hardware import Hardware
from protofed.experiments.loading import load_data
from protofed.federation import Federation, ServerState
from protofed.robust import Attackers
from protofed.samples import FederatedData
from protofed.training import Executor, LocalTrainer


def assemble(
    experiment: Experiment,
    federated: FederatedData | None = None,
    bfloat16: Collection[str] | None = None,
    hardware: Hardware | None = None,
    pretrained: bool = True,
) -> tuple[Federation, FederatedData]:
    """Build the method, the clients and the engine; the caller closes ``federation.executor``.

    Args:
        experiment: The experiment.
        federated: The clients' data; loaded according to the experiment by default.
        bfloat16: Kinds of models that a resumed run computes in bfloat16; measured by default, with
            ``execution.precision=bf16``.
        hardware: The hardware to compute on; determined from the experiment by default.
        pretrained: Whether to read files of initial weights; not necessary where trained ones replace them.

    Returns:
        The federation before its first round, and the clients' data.

    Raises:
        ProtofedError: If parts of the experiment do not fit together, before any training.
    """
    hardware = hardware or Hardware.of(experiment.execution)
    federated = hardware.place(federated or load_data(experiment))
    if experiment.execution.threads:
        torch.set_num_threads(experiment.execution.threads)
    builder = Builder(experiment, federated, hardware, pretrained=pretrained)
    executor = build_executor(experiment, hardware, builder, bfloat16)
    try:
        builder.fill(executor.clients)
        federation = build_federation(experiment, builder.trainer, executor)
    except BaseException:
        executor.close()
        raise
    return federation, federated


def build_federation(
    experiment: Experiment, trainer: LocalTrainer, executor: Executor, state: ServerState | None = None
) -> Federation:
    """Return a federation before its first round.

    Args:
        experiment: The experiment.
        trainer: The trainer, with the method and the codec.
        executor: The executor of the clients' visits.
        state: The server's state, if the executor shares it; a new one by default.

    Raises:
        ConfigError: If the clients do not suit the experiment.
    """
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
        state or ServerState(),
    )
