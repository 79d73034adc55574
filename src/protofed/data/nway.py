"""n-way k-shot partitions, the setting of FedProto (Sec. 6.1) and GFPL (Sec. 5.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from protofed.compute.seeding import generator
from protofed.data.deck import Deck
from protofed.data.partition import Partition, Request, Share, names, partitions, require_clients
from protofed.errors import ConfigError, require
from protofed.options import Options, option


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
