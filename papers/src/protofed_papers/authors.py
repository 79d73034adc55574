"""The splits of FedProto's, TinyProto's and ProtoNorm's published code, from numpy's and Python's generators.

FedProto: github.com/yuetan031/FedProto at 97e42e2, ``lib/sampling.py`` and ``exps/federated_main.py``. TinyProto
and ProtoNorm, whose files are the same: github.com/regulationLee/TinyProto at f2aa607 and ProtoNorm at e816cef,
``dataset/generate_cifar10.py`` and ``dataset/utils/dataset_utils.py``. GFPL has published no code.

Positions are those of the pool, training set before test set as the code reads them. A copy whose images are in
another order gives the same numbers of samples per client and class, but other images. FedProto's code sorts labels
with an unstable sort, so which images of a class come first depends on the version of numpy; here they keep their
order.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch

from protofed.compute.seeding import generator
from protofed.data.partition import Partition, Request, Share, names, partitions, require_clients, subset
from protofed.errors import ConfigError, require
from protofed.options import Options, option

TRAINING = 0.75  #: Part of a client's samples that is for training in TinyProto's and ProtoNorm's code
TRIES = 2000  #: Most Dirichlet draws until every client has a sample; the code has no limit
SPACING = 110
"""Images of a class from one device's first to the next one's in FedProto's code (``train_shots_max``)."""


class _Code(NamedTuple):
    """The division of a data set by FedProto's code."""

    training: int
    test_shots: int
    beyond: int  #: Shots per class are in ``k - s + 1 .. k + s - 1 + beyond`` with ``s`` the spread of n.


FEDPROTO = {70_000: _Code(60_000, 40, -1), 60_000: _Code(50_000, 15, 1)}  #: By size: MNIST and CIFAR-10


@dataclass(frozen=True)
class AuthorsOptions(Options):
    """Choice of the published code, and its command line."""

    paper: Literal["fedproto", "tinyproto", "protonorm"] = option(
        "protonorm", "whose code: fedproto (MNIST, CIFAR-10) | tinyproto | protonorm, which are the same"
    )
    skew: Literal["dirichlet", "pathological"] = option(
        "dirichlet", "of tinyproto and protonorm: Dirichlet(alpha) per class | a fixed number of classes per client"
    )
    alpha: float = option(0.1, "concentration of the Dirichlet distribution", above=0, most=10**6)
    classes: int = option(2, "classes per client of the pathological split: 2, 10, 20 of 10, 100, 200", least=1)
    n: int = option(3, "of fedproto: mean number of classes per client", least=1)
    n_std: int = option(2, "of fedproto: n_i and k_i are within so many of n and k", least=1)
    k: int = option(100, f"of fedproto: mean number of training images per class, up to {SPACING}", least=1)
    seed: int = option(
        0, "seed, whatever the run's; 0 = the code's: 1234 for fedproto, else 1", least=0, most=2**32 - 1
    )
    share: float = option(1.0, "keep this share of each client's samples, chosen per class", above=0, most=1)


def authors(request: Request, options: AuthorsOptions) -> list[Share]:
    """Return the shares that the published code makes, in the order in which it reads them."""
    require_clients(request)
    if options.paper == "fedproto":
        pairs = _fedproto(request, options)
    else:
        draw = np.random.RandomState(options.seed or 1)
        labels = request.y.numpy()
        divide = _dirichlet if options.skew == "dirichlet" else _pathological
        pairs = [_split(rows, draw) for rows in divide(labels, request, options, draw)]
    return [
        Share(name, *(_keep_share(rows, request, options, f"{name}/{part}") for part, rows in enumerate(pair)))
        for name, pair in zip(names(request.clients), pairs, strict=True)
    ]


_Pair = tuple[np.ndarray, np.ndarray]  #: Positions for training and for testing


def _fedproto(request: Request, options: AuthorsOptions) -> list[_Pair]:
    K, M, n, s = request.num_classes, request.clients, options.n, options.n_std
    code = FEDPROTO.get(len(request.y))
    sizes = " or ".join(map(str, FEDPROTO))
    require(code is not None, f"partition.paper=fedproto: divides {sizes} images, not {len(request.y)}")
    assert code is not None
    labels = request.y.numpy()
    train, test = ([np.flatnonzero(own == c) for c in range(K)] for own in np.split(labels, [code.training]))
    least = options.k - s + 1
    # On MNIST with a spread of 1 the code draws from an empty range and stops: k itself is what is left of it.
    shots = max(least, options.k + s - 1 + code.beyond)
    require(least >= 1, f"partition.k = {options.k}: must be at least partition.n_std = {s}")
    require(
        shots <= SPACING and (M - 1) * SPACING + shots <= min(map(len, train)),
        f"partition.paper=fedproto: the code gives images {SPACING}·i and on of a class to device i, so "
        f"{M} devices with up to {shots} of them would share some: lower data.clients or partition.k",
    )
    require(
        M * code.test_shots <= min(map(len, test)),
        f"partition.paper=fedproto: {M} devices with {code.test_shots} test images of a class would share some: "
        "lower data.clients",
    )
    seed = options.seed or 1234
    draw, choice = np.random.RandomState(seed), random.Random(seed)
    low, high = max(2, n - s), min(K, n + s + 1)
    require(low < high, f"partition.n = {n}: the code draws from {low}..{high - 1}: no such number of classes")
    ways = draw.randint(low, high, M)
    ks = draw.randint(least, shots + 1, M)
    pairs = []
    for i in range(M):
        own = sorted(choice.sample(range(K), int(ways[i])))
        pairs.append(
            (
                np.concatenate([train[c][i * SPACING :][: ks[i]] for c in own]),
                code.training + np.concatenate([test[c][i * code.test_shots :][: code.test_shots] for c in own]),
            )
        )
    return pairs


def _dirichlet(
    labels: np.ndarray, request: Request, options: AuthorsOptions, draw: np.random.RandomState
) -> list[np.ndarray]:
    """Divide each class by a Dirichlet draw among the clients below an equal share; again until all have some."""
    M = request.clients
    for _ in range(TRIES):
        parts: list[list[np.ndarray]] = [[] for _ in range(M)]
        held = np.zeros(M, dtype=int)
        for c in range(request.num_classes):
            members = np.flatnonzero(labels == c)
            draw.shuffle(members)
            weights = draw.dirichlet(np.repeat(options.alpha, M)) * (held < len(labels) / M)
            total = float(weights.sum())
            require(total > 0, f"partition.alpha = {options.alpha}: leaves no client for class {c}: raise it")
            cuts = (np.cumsum(weights / total) * len(members)).astype(int)[:-1]
            for own, piece in zip(parts, np.split(members, cuts), strict=True):
                own.append(piece)
            held = np.array([sum(map(len, own)) for own in parts])
        if held.min() > 0:
            return [np.concatenate(own) for own in parts]
    raise ConfigError(f"partition.alpha = {options.alpha}: leaves a client without samples {TRIES} times: raise it")


def _pathological(
    labels: np.ndarray, request: Request, options: AuthorsOptions, draw: np.random.RandomState
) -> list[np.ndarray]:
    """Give each class to the first clients that lack one, in pieces of a tenth of an equal share to all of it.

    So clients fall into disjoint groups with the same classes, and the last of a group gets what is left.
    """
    K, M = request.num_classes, request.clients
    parts: list[list[np.ndarray]] = [[] for _ in range(M)]
    for c in range(K):
        members = np.flatnonzero(labels == c)
        holders = [own for own in parts if len(own) < options.classes][: int(np.ceil(M / K * options.classes))]
        require(bool(holders), f"partition.classes = {options.classes}: none of {M} clients is left for class {c}")
        equal = len(members) / len(holders)
        least = int(max(equal / 10, 1 / K))
        require(least < int(equal), f"class {c} has {len(members)} samples for {len(holders)} clients: too few")
        sizes = draw.randint(least, int(equal), len(holders) - 1)
        for own, piece in zip(holders, np.split(members, np.cumsum(sizes)), strict=True):
            own.append(piece)
    short = [name for name, own in zip(names(M), parts, strict=True) if not own]
    require(not short, f"partition.classes = {options.classes}: {', '.join(short)} without any class: raise it")
    return [np.concatenate(own) for own in parts]


def _split(rows: np.ndarray, draw: np.random.RandomState) -> _Pair:
    """Divide a client's samples into training and test, as scikit-learn does with ``train_size`` alone."""
    require(len(rows) > 1, "partition 'authors': a client has one sample, which cannot be divided: raise alpha")
    training = int(TRAINING * len(rows))
    order = draw.permutation(len(rows))
    test = len(rows) - training
    return rows[order[test:]], rows[order[:test]]


def _keep_share(rows: np.ndarray, request: Request, options: AuthorsOptions, scope: str) -> torch.Tensor:
    """Return the share of some positions that is kept, in their order."""
    positions = torch.from_numpy(rows)
    if options.share == 1 or not len(rows):
        return positions
    size = max(1, round(options.share * len(rows)))
    return positions[subset(request.y[positions], size, generator(request.seed, "share", scope))]


partitions.register("authors")(
    Partition("the splits of the published code of FedProto, TinyProto and ProtoNorm", authors, AuthorsOptions)
)
