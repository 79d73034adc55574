"""Pathological heterogeneity, with a fixed number of classes per client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.data.deck import Deck
from protofed.data.flower import run_partitioner
from protofed.data.partition import Partition, Request, Share, names, partitions, require_clients
from protofed.errors import ConfigError, require
from protofed.options import Options, option


@dataclass(frozen=True)
class PathologicalOptions(Options):
    """Number and choice of a client's classes."""

    classes: int = option(2, "classes per client, up to as many as the data have", least=1)
    assignment: Literal["balanced", "random", "first-deterministic", "deterministic"] = option(
        "balanced",
        "balanced: the numbers of clients per class differ by at most one | random | first-deterministic | "
        "deterministic: modes of flwr-datasets, which may leave a class without a client",
    )
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
    given = None if options.assignment == "balanced" else _flower(request, options)
    if given is None or options.shares == "unequal":
        hands = _dealt(request, options.classes) if given is None else [request.y[s.train].unique() for s in given]
        given = _divide(request, [hand.tolist() for hand in hands], options.shares)
    unused = len(request.y) - sum(len(share.train) for share in given)
    require(
        unused == 0,
        f"partition 'pathological': {unused} samples belong to classes that no client "
        "has: raise partition.classes or data.clients, or use partition.assignment=balanced",
    )
    return given


def _dealt(request: Request, classes: int) -> list[Tensor]:
    deck = Deck(request.y.unique(), generator(request.seed, "partition", "classes"))
    return [deck.deal(classes) for _ in range(request.clients)]


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


def _flower(request: Request, options: PathologicalOptions) -> list[Share]:
    def build(seed: int) -> Any:
        from flwr_datasets.partitioner import PathologicalPartitioner

        return PathologicalPartitioner(
            num_partitions=request.clients,
            partition_by="label",
            num_classes_per_partition=options.classes,
            class_assignment_mode=options.assignment,
            seed=seed,
        )

    try:
        return run_partitioner(request, build)
    except ValueError as error:
        raise ConfigError(f"partition 'pathological': {' '.join(str(error).split())}") from None


partitions.register("pathological")(
    Partition("label skew: a fixed number of classes per client", pathological, PathologicalOptions)
)
