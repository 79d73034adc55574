"""Choosing samples class by class: held-out parts and subsets."""

from __future__ import annotations

import torch
from torch import Tensor


def apportion(quotas: Tensor, total: int, caps: Tensor, generator: torch.Generator) -> Tensor:
    """Round fractional quotas to whole numbers by the largest remainder.

    Args:
        quotas: ``(K,)`` float64, each at least 0.
        total: What the result should sum to; less is returned where ``caps`` forbid it, and no entry is
            rounded up by more than one.
        caps: ``(K,)`` int64 upper bounds.
        generator: Breaks ties.

    Returns:
        ``(K,)`` int64.
    """
    base = torch.minimum(quotas.floor().long(), caps)
    remainder = quotas - base
    # A random order first, then a stable sort: equal remainders do not always favour low class numbers.
    order = torch.randperm(len(quotas), generator=generator)
    order = order[torch.argsort(remainder[order], descending=True, stable=True)]
    order = order[(base < caps)[order] & (remainder > 0)[order]]
    base[order[: max(0, total - int(base.sum()))]] += 1
    return base


def choose(y: Tensor, per_class: Tensor, generator: torch.Generator) -> Tensor:
    """Return a mask ``(n,)`` with ``per_class[c]`` random samples of every class ``c`` of ``y`` ``(n,)``."""
    shuffled = torch.randperm(len(y), generator=generator)
    by_class = shuffled[torch.argsort(y[shuffled], stable=True)]
    counts = torch.bincount(y, minlength=len(per_class))
    starts = counts.cumsum(0) - counts
    rank = torch.arange(len(y)) - starts[y[by_class]]
    mask = torch.zeros(len(y), dtype=torch.bool)
    mask[by_class] = rank < per_class[y[by_class]]
    return mask


def hold_out(y: Tensor, fraction: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Split positions ``0..n-1`` into kept and held-out ones, class by class.

    The held-out part has ``round(n * fraction)`` samples, divided among the classes by largest remainder.
    Every class keeps at least one sample, so a class with a single one is never held out; with such
    classes the held-out part may be smaller.

    Args:
        y: ``(n,)`` int64 labels.
        fraction: In ``[0, 1)``.
        generator: Decides which samples.

    Returns:
        ``(kept, held_out)``, each int64 in ascending order.
    """
    if len(y) == 0:
        return torch.arange(0), torch.arange(0)
    counts = torch.bincount(y)
    quotas = torch.where(counts > 1, counts, 0).double() * fraction
    take = apportion(quotas, round(len(y) * fraction), (counts - 1).clamp(min=0), generator)
    mask = choose(y, take, generator)
    return (~mask).nonzero().flatten(), mask.nonzero().flatten()


def subset(y: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Return ``size`` positions of ``y`` ``(n,)``, ascending, with the class shares of the whole."""
    counts = torch.bincount(y)
    take = apportion(counts.double() * size / max(1, len(y)), size, counts, generator)
    return choose(y, take, generator).nonzero().flatten()
