"""n-way k-shot tasks, the setting of FedProto (Sec. 5.1) and GFPL."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from protofed.data.deck import Deck
from protofed.data.partition import Partition, Request, Share, names, partitions, require, require_clients
from protofed.errors import ConfigError
from protofed.options import option
from protofed.seeding import generator


@dataclass(frozen=True)
class NWayKShotOptions:
    """Client ``i`` has ``n_i`` classes with ``k_i`` training samples each."""

    n: int = option(3, "mean number of classes per client")
    n_std: int = option(2, "n_i is uniform on max(2, n - n_std) .. min(K, n + n_std)")
    k: int = option(100, "mean number of training samples per class")
    k_std: int = option(2, "k_i is uniform on max(1, k - k_std) .. k + k_std")
    test_shots: int = option(15, "test samples per class of the client")


def nway_kshot(request: Request, options: NWayKShotOptions) -> list[Share]:
    """Return shares with their own train and test part.

    No sample serves two clients while its class has unused ones; train and test of one client never overlap.

    Raises:
        ConfigError: For options outside their range, or a class with too few samples.
    """
    _check(request, options)
    K, M = request.num_classes, request.clients
    decks = [
        Deck((request.y == c).nonzero().flatten(), generator(request.seed, "partition", "class", c))
        for c in range(K)
    ]
    shares = []
    for i, name in enumerate(names(M)):
        draw = generator(request.seed, "partition", "client", i)
        # The lower bound of two classes is FedProto's; n = 1 asks for one.
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


def _check(request: Request, options: NWayKShotOptions) -> None:
    require_clients(request)
    require(
        1 <= options.n <= request.num_classes,
        f"partition.n = {options.n}: the data have {request.num_classes} classes, so it must be in "
        f"1..{request.num_classes}",
    )
    require(options.k >= 1, f"partition.k = {options.k}: must be at least 1")
    for name in ("n_std", "k_std", "test_shots"):
        value = getattr(options, name)
        require(value >= 0, f"partition.{name} = {value}: must be 0 or more")


def _uniform(low: int, high: int, source: torch.Generator) -> int:
    return int(torch.randint(low, high + 1, (1,), generator=source))


partitions.register("nway_kshot")(
    Partition("n classes with k samples each per client (FedProto, GFPL)", nway_kshot, NWayKShotOptions)
)
