"""Partitions by classes: n-way k-shot (FedProto, GFPL), and a fixed number of classes per client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.data.partition import Partition, Request, Share, names, partitions, require_clients
from protofed.errors import ConfigError, require
from protofed.options import Options, option


class Deck:
    """Cards dealt without replacement; once they run out, all of them are shuffled and dealt again.

    After any number of deals, the numbers of times any two cards have been dealt differ by at most one.
    """

    def __init__(self, cards: Tensor, source: torch.Generator) -> None:
        self._source = source
        self._cards = cards[torch.randperm(len(cards), generator=source)]
        self._next = 0

    def __len__(self) -> int:
        return len(self._cards)

    def deal(self, count: int) -> Tensor:
        """Return ``count`` different cards, ``count <= n``."""
        hand = self._cards[self._next : self._next + count]
        self._next += len(hand)
        if len(hand) == count:
            return hand
        # A new round: cards already in this hand come last, so that no hand holds a card twice.
        others = self._cards[: len(self._cards) - len(hand)]
        others = others[torch.randperm(len(others), generator=self._source)]
        self._cards = torch.cat([others, hand])
        self._next = count - len(hand)
        return torch.cat([hand, others[: self._next]])


@dataclass(frozen=True)
class NWayKShotOptions(Options):
    """Client ``i`` has ``n_i`` classes with ``k_i`` training samples each."""

    n: int = option(3, "mean number of classes per client, up to K", least=1)
    n_std: int = option(2, "n_i is uniform on max(2, n - n_std) .. min(K, n + n_std)", least=0)
    k: int = option(100, "mean number of training samples per class", least=1)
    k_std: int = option(2, "k_i is uniform on max(1, k - k_std) .. k + k_std", least=0)
    test_shots: int = option(15, "test samples per class of the client", least=0)


def nway_kshot(request: Request, options: NWayKShotOptions) -> list[Share]:
    """Return shares with separate training and test parts.

    No sample is given to two clients while its class has unused ones; the training and test parts of one client
    never overlap. Once a class has none left, one client's test samples may be another's training samples, which
    is noted where data are loaded.
    """
    require_clients(request)
    require(
        options.n <= request.num_classes,
        f"partition.n = {options.n}: the data have {request.num_classes} classes, so it must be in "
        f"1..{request.num_classes}",
    )
    K, M = request.num_classes, request.clients
    decks = [
        Deck((request.y == c).nonzero().flatten(), generator(request.seed, "partition", "class", c))
        for c in range(K)
    ]
    shares = []
    for i, name in enumerate(names(M)):
        draw = generator(request.seed, "partition", "client", i)
        # The lower bound of two classes is FedProto's; n = 1 lowers it to one.
        ways = _uniform(max(min(2, options.n), options.n - options.n_std), min(K, options.n + options.n_std), draw)
        shots = _uniform(max(1, options.k - options.k_std), options.k + options.k_std, draw)
        train, test = [], []
        for c in torch.randperm(K, generator=draw)[:ways].sort().values.tolist():
            if len(decks[c]) < shots + options.test_shots:
                raise ConfigError(
                    f"partition 'nway_kshot': class {c} has {len(decks[c])} samples, but {name} needs "
                    f"{shots} + {options.test_shots}: lower partition.k or partition.test_shots"
                )
            hand = decks[c].deal(shots + options.test_shots)
            train.append(hand[:shots])
            test.append(hand[shots:])
        shares.append(Share(name, torch.cat(train).sort().values, torch.cat(test).sort().values))
    return shares


def _uniform(low: int, high: int, source: torch.Generator) -> int:
    return int(torch.randint(low, high + 1, (1,), generator=source))


partitions.register("nway_kshot")(
    Partition("n classes with k samples each per client (FedProto, GFPL)", nway_kshot, NWayKShotOptions)
)


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
