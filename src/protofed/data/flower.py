"""The partitioners of ``flwr-datasets``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from protofed.compute.seeding import derive, generator
from protofed.data.partition import Request, Share, names, require_clients
from protofed.data.quiet import quiet


def run_partitioner(request: Request, build: Callable[[int], Any]) -> list[Share]:
    """Run a partitioner of ``flwr-datasets`` on a table that holds only labels and positions.

    Args:
        build: Makes a partitioner of the column ``label`` from a 32-bit seed.
    """
    import datasets as hf

    require_clients(request)
    # The partitioners split each class in the order given, so the order must be random.
    order = torch.randperm(len(request.y), generator=generator(request.seed, "partition", "order"))
    with quiet():
        partitioner = build(derive(request.seed, "partition") % 2**32)
        partitioner.dataset = hf.Dataset.from_dict({"label": request.y[order].tolist(), "index": order.tolist()})
        parts = [partitioner.load_partition(i).with_format("numpy")[:]["index"] for i in range(request.clients)]
    return [
        Share(name, torch.as_tensor(part).long().sort().values)
        for name, part in zip(names(request.clients), parts, strict=True)
    ]
