"""Which samples make up the batches of an epoch, and of a pass over some data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from protofed.methods.contract import Batch, Tensors
from protofed.samples import Samples
from protofed.seeding import generator

EVALUATION_BATCH = 256


def epoch_rows(samples: int, size: int, even: bool, seed: int, *scope: str | int) -> list[Tensor]:
    """Return the rows of each batch of an epoch, shuffled by ``seed`` and ``scope``.

    With ``even`` (BatchNorm) a batch of a single sample is left out: it has no batch statistics.
    """
    order = torch.randperm(samples, generator=generator(seed, "shuffle", *scope))
    return [rows for rows in batch_rows(order, size, even=even) if len(rows) > 1 or (len(rows) and not even)]


def batch_rows(order: Tensor, size: int, *, even: bool) -> Sequence[Tensor]:
    """Divide the ``(n,)`` shuffled rows of an epoch into ``⌈n/B⌉`` batches.

    All but the last have ``B`` rows; with ``even`` they differ by one row at most. Deep networks with BatchNorm
    need that: the variance of a last batch of two or three samples can be so small that one step ruins the model.
    """
    return order.tensor_split(-(-len(order) // size)) if even and len(order) else order.split(size)


def batches(samples: Samples, model: torch.nn.Module, size: int = EVALUATION_BATCH) -> Iterator[Batch]:
    """Yield normalised batches in order."""
    dtype = next(model.parameters()).dtype
    for start in range(0, len(samples), size):
        rows = slice(start, start + size)
        yield Batch(normalise(samples.x[rows], dtype), samples.y[rows])


def add_up(total: Tensors, more: Tensors) -> None:
    """Add the statistics of one batch to those of the batches before."""
    for name, tensor in more.items():
        total[name] = total[name] + tensor if name in total else tensor


def normalise(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return uint8 images ``0 … 255`` as ``-1 … 1``; anything else only converted to ``dtype``."""
    if x.dtype == torch.uint8:
        return x.to(dtype).div_(127.5).sub_(1)
    return x.to(dtype)
