"""Global prototypes that the server trains: the state and a round of FedTGP and FedORGP."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.methods.contract import Task, Tensors, Upload
from protofed.prototypes.contrastive import Objective, PrototypeNetwork, prototype_network, train_prototypes
from protofed.prototypes.table import Prototypes


def first_network(task: Task) -> Tensors:
    """Return a random prototype network, as ``network.…``."""
    source = generator(task.seed, "prototype network")
    return _add_prefix(prototype_network(task.num_classes, task.feature_dim, generator=source, dtype=task.dtype))


def pairs(uploads: Iterable[Upload], task: Task) -> tuple[Tensor, Tensor]:
    """Return all uploaded prototypes ``(n, d)`` and their classes ``(n,)``; n may be 0."""
    payloads = [upload.payload for upload in uploads]
    if not payloads:
        return torch.zeros(0, task.feature_dim), torch.zeros(0, dtype=torch.int64)
    rows = torch.cat([p["prototypes"] for p in payloads]).to(task.dtype)
    return rows, torch.cat([p["classes"] for p in payloads])


def train_network(
    server: Tensors,
    prototypes: Tensor,
    labels: Tensor,
    objective: Objective,
    plan: tuple[int, float, int],
    task: Task,
    round_number: int,
) -> tuple[Tensors, Prototypes, Tensor]:
    """Return the state with the network trained on a round's pairs, its prototypes of their classes, and losses."""
    epochs, lr, batch_size = plan
    found = train_prototypes(
        PrototypeNetwork(*(server[f"network.{name}"] for name in PrototypeNetwork._fields)),
        prototypes,
        labels,
        objective,
        epochs=epochs,
        lr=lr,
        batch_size=batch_size,
        generator=generator(task.seed, "server training", round_number),
    )
    reported = torch.zeros(task.num_classes, dtype=torch.bool)
    reported[labels] = True
    return {**server, **_add_prefix(found.network)}, Prototypes(found.prototypes, reported), found.losses


def _add_prefix(network: PrototypeNetwork) -> Tensors:
    return {f"network.{name}": tensor for name, tensor in network._asdict().items()}
