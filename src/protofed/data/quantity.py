"""Quantity skew alone: clients differ in their numbers of samples, and not in their classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from protofed.compute.seeding import derive, generator
from protofed.data.partition import Partition, Request, Share, names, partitions, require_clients
from protofed.data.splits import apportion
from protofed.errors import require
from protofed.options import Options, option


@dataclass(frozen=True)
class QuantityOptions(Options):
    """Random shares whose sizes are drawn."""

    alpha: float = option(
        0.5, "concentration of Dir(alpha); small = a few clients have nearly all", above=0, most=10**6
    )
    min_size: int = option(10, "samples that every client gets before the others are shared", least=0)


def quantity(request: Request, options: QuantityOptions) -> list[Share]:
    """Return random shares of different sizes."""
    require_clients(request)
    n, M, least = len(request.y), request.clients, options.min_size
    require(
        M * least <= n,
        f"partition.min_size = {least} for {M} clients needs {M * least} samples, but there are {n}: lower "
        "partition.min_size or data.clients",
    )
    rng = np.random.default_rng(derive(request.seed, "partition"))
    weights = rng.dirichlet(np.full(M, options.alpha))
    rest = n - M * least
    quotas = torch.from_numpy(rest * weights / weights.sum())
    source = generator(request.seed, "partition", "order")
    sizes = least + apportion(quotas, rest, torch.full((M,), rest), source)
    sizes[sizes.argmax()] += n - int(sizes.sum())  # of rounding
    parts = torch.randperm(n, generator=source).split(sizes.tolist())
    return [Share(name, part.sort().values) for name, part in zip(names(M), parts, strict=True)]


partitions.register("quantity")(
    Partition("quantity skew alone: random shares of different sizes", quantity, QuantityOptions)
)
