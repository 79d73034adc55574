"""Helpers of losses, and of methods that train on the server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofed.methods.contract import Batch, Tensors
from protofed.wire.schema import Field

HTFL_CLIP = 10.0  #: Largest norm of each network's gradient in HtFLlib and PFLlib


def sound(tensors: Tensors) -> bool:
    """Return whether all numbers may be broadcast; after training on a diverged client's upload they may not."""
    real = (t for t in tensors.values() if t.is_floating_point())
    return all(bool(t.isfinite().all()) and not bool((t.abs() > Field.limit).any()) for t in real)


def divergence(batch: Batch, teacher: Tensor, student: Tensor) -> Tensor:
    """Return ``KL(softmax(teacher) ‖ softmax(student))`` of ``(B, K)`` logits, the mean over the batch."""
    p, log_p, log_q = teacher.softmax(-1), teacher.log_softmax(-1), student.log_softmax(-1)
    return batch.mean((p * (log_p - log_q)).sum(-1))


@contextmanager
def batch_statistics(model: nn.Module, *sizes: int) -> Iterator[None]:
    """Put a model into train mode for batches of some sizes, without moving BatchNorm's running statistics.

    A model with BatchNorm stays in eval mode for a batch of one sample, which has no variance.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    if norms and min(sizes) < 2:
        yield
        return
    tracked, before = [module for module in norms if module.track_running_stats], model.training
    for module in tracked:
        module.track_running_stats = False
    model.train()
    try:
        yield
    finally:
        model.train(before)
        for module in tracked:
            module.track_running_stats = True


def linear_layer(inputs: int, outputs: int, generator: torch.Generator, dtype: torch.dtype) -> Tensors:
    """Return ``weight`` and ``bias`` of a linear layer, uniform on ``±1/√inputs`` as torch initialises them."""
    bound = inputs**-0.5
    shapes = {"weight": (outputs, inputs), "bias": (outputs,)}
    return {
        name: torch.empty(shape, dtype=dtype).uniform_(-bound, bound, generator=generator)
        for name, shape in shapes.items()
    }


def train_linear(
    layer: Tensors,
    x: Tensor,
    y: Tensor,
    optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer],
    plan: tuple[int, int],
    order: torch.Generator,
) -> tuple[Tensors, list[float]]:
    """Train ``weight`` and ``bias`` of a linear layer by cross-entropy.

    Args:
        optimizer: Makes the optimiser of the two.
        plan: Epochs and batch size.
        order: Draws the order of every epoch.

    Returns:
        The trained layer, and the mean loss of each epoch, taken before each step.
    """
    trained = {name: layer[name].clone().requires_grad_() for name in ("weight", "bias")}
    steps, losses = optimizer(trained.values()), []
    epochs, size = plan
    for _ in range(epochs):
        total = 0.0
        for rows in torch.randperm(len(y), generator=order).split(size):
            loss = F.cross_entropy(F.linear(x[rows], trained["weight"], trained["bias"]), y[rows])
            steps.zero_grad()
            loss.backward()
            steps.step()
            total += float(loss.detach()) * len(rows)
        losses.append(total / len(y))
    return {name: tensor.detach() for name, tensor in trained.items()}, losses
