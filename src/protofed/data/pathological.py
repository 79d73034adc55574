"""Pathological heterogeneity, with a fixed number of classes per client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.data.deck import Deck
from protofed.data.partition import Partition, Request, Share, names, partitions, require_clients
from protofed.errors import require
from protofed.options import Options, option


@dataclass(frozen=True)
class PathologicalOptions(Options):
    """Number and choice of a client's classes."""

    classes: int = option(2, "classes per client, up to as many as the data have", least=1)
    shares: Literal["equal", "unequal"] = option(
        "equal",
        "a class's samples among its clients: equal | unequal: as in the code of TinyProto, ProtoNorm and PFLlib, "
        "all but one get between a tenth of an equal share and all of it, the last the rest",
    )


def pathological(request: Request, options: PathologicalOptions) -> list[Share]:
    """Return shares with a fixed number of classes; each class is divided among its clients."""
    require_clients(request)
    present = len(request.y.unique())
    require(
        options.classes <= present,
        f"partition.classes = {options.classes}: the data have {present} classes: use 1..{present}",
    )
    deck = Deck(request.y.unique(), generator(request.seed, "partition", "classes"))
    found = _divide(request, [deck.deal(options.classes).tolist() for _ in range(request.clients)], options.shares)
    unused = len(request.y) - sum(len(share.train) for share in found)
    require(
        unused == 0,
        f"partition 'pathological': {unused} samples belong to classes that no client "
        "has: raise partition.classes or data.clients",
    )
    return found


def _divide(request: Request, hands: list[list[int]], shares: str) -> list[Share]:
    parts: list[list[Tensor]] = [[] for _ in hands]
    for c in {c for hand in hands for c in hand}:
        holders = [i for i, hand in enumerate(hands) if c in hand]
        members = (request.y == c).nonzero().flatten()
        require(
            len(members) >= len(holders),
            f"partition 'pathological': class {c} has {len(members)} samples for {len(holders)} clients: "
            "lower partition.classes or data.clients",
        )
        shuffled = members[torch.randperm(len(members), generator=generator(request.seed, "partition", c))]
        if shares == "equal":
            pieces = shuffled.tensor_split(len(holders))
        else:
            pieces = shuffled.split(_unequal(len(members), len(holders), generator(request.seed, "shares", c)))
        for i, piece in zip(holders, pieces, strict=True):
            parts[i].append(piece)
    return [
        Share(name, torch.cat(part).sort().values) for name, part in zip(names(request.clients), parts, strict=True)
    ]


def _unequal(samples: int, holders: int, source: torch.Generator) -> list[int]:
    """Return sizes in random order: all but one uniform on ``[n/10m, n/m)``, and the rest of the ``n`` samples."""
    equal = samples // holders
    drawn = torch.randint(max(1, equal // 10), max(2, equal), (holders - 1,), generator=source)
    sizes = torch.cat([drawn, samples - drawn.sum(0, keepdim=True)])
    found: list[int] = sizes[torch.randperm(holders, generator=source)].tolist()
    return found


partitions.register("pathological")(
    Partition("label skew: a fixed number of classes per client", pathological, PathologicalOptions)
)
