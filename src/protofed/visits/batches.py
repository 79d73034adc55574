"""Batches of a training epoch and of a pass over some data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.methods.contract import Batch, Tensors
from protofed.samples import Samples

EVALUATION_BATCH = 256


def epoch_rows(
    samples: int, size: int, even: bool, seed: int, *scope: str | int, shuffle: bool = True, drop_last: bool = False
) -> list[Tensor]:
    """Return the rows of each batch of an epoch.

    Args:
        even: Batches differ by at most one row (see :func:`batch_rows`); a batch of a single sample, which has no
            batch statistics, is then left out.
        scope: Determines the order, with the seed.
        shuffle: Random order, or that of the samples.
    """
    source = generator(seed, "shuffle", *scope)
    order = torch.randperm(samples, generator=source) if shuffle else torch.arange(samples)
    batches = batch_rows(order, size, even=even, drop_last=drop_last)
    return [rows for rows in batches if len(rows) > 1 or (len(rows) and not even)]


def batch_rows(order: Tensor, size: int, *, even: bool, drop_last: bool = False) -> Sequence[Tensor]:
    """Divide the rows of an epoch into ``⌈n/B⌉`` batches.

    Args:
        even: Batch sizes differ by at most one; otherwise all but the last are ``B``. Deep networks with BatchNorm
            need even batches: the variance of a last batch of two or three samples can be so small that one step
            ruins the model.
        drop_last: Leave out a last batch of fewer than ``B`` rows.
    """
    if drop_last:
        order = order[: whole(len(order), size)]
    return order.tensor_split(-(-len(order) // size)) if even and len(order) else order.split(size)


def whole(samples: int, size: int) -> int:
    """Count the samples in whole batches; all where there is none."""
    return samples // size * size or samples


def batches(samples: Samples, model: torch.nn.Module, size: int = EVALUATION_BATCH) -> Iterator[Batch]:
    """Yield normalised batches in order."""
    dtype = next(model.parameters()).dtype
    for start in range(0, len(samples), size):
        rows = slice(start, start + size)
        yield Batch(normalise(samples.x[rows], dtype), samples.y[rows])


def add_up(total: Tensors, more: Tensors) -> None:
    """Add the statistics of a batch to a running total, in place."""
    for name, tensor in more.items():
        total[name] = total[name] + tensor if name in total else tensor


def normalise(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Normalise inputs: map uint8 images from ``0 … 255`` to ``-1 … 1``, and only convert other tensors."""
    if x.dtype == torch.uint8:
        return x.to(dtype).div_(127.5).sub_(1)
    return x.to(dtype)
