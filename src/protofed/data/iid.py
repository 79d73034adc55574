"""Identically distributed clients: equally large random shares."""

from __future__ import annotations

import torch

from protofed.compute.seeding import generator
from protofed.data.partition import Partition, Request, Share, names, partitions, require_clients
from protofed.options import NoOptions


def iid(request: Request, options: NoOptions) -> list[Share]:
    """Return random shares of equal size (sizes differ by at most one)."""
    require_clients(request)
    order = torch.randperm(len(request.y), generator=generator(request.seed, "partition", "order"))
    parts = order.tensor_split(request.clients)
    return [Share(name, part.sort().values) for name, part in zip(names(request.clients), parts, strict=True)]


partitions.register("iid")(Partition("equally large random shares", iid))
