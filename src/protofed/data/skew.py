"""Skewed and plain shares: identically distributed clients, different sizes, Dirichlet draws of each class."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch

from protofed.compute.seeding import derive, generator
from protofed.data.partition import Partition, Request, Share, apportion, names, partitions, require_clients
from protofed.errors import ConfigError, require
from protofed.options import NoOptions, Options, option


def iid(request: Request, options: NoOptions) -> list[Share]:
    """Return random shares of equal size (sizes differ by at most one)."""
    require_clients(request)
    order = torch.randperm(len(request.y), generator=generator(request.seed, "partition", "order"))
    parts = order.tensor_split(request.clients)
    return [Share(name, part.sort().values) for name, part in zip(names(request.clients), parts, strict=True)]


partitions.register("iid")(Partition("equally large random shares", iid))


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


log = logging.getLogger("protofed")

# Draws as flwr-datasets makes them, which gives up after eleven; small data sets may need a few more.
_RESTARTS, _ATTEMPTS = 5, 11
_DRAWS = 2000  # of balanced shares; ten classes among 20 clients at alpha = 0.01 need about 50
_AT_ONCE = 64


@dataclass(frozen=True)
class DirichletOptions(Options):
    """Practical heterogeneity: per class, the clients' shares are drawn from Dir(alpha)."""

    alpha: float = option(0.1, "concentration of Dir(alpha); small = few classes per client", above=0, most=10**6)
    min_size: int = option(10, "fewest samples of a client; shares are drawn again until all have them", least=0)
    self_balancing: bool = option(
        False,
        "a client that holds N/M samples gets no further class; with min_size=1 as in the code of TinyProto, "
        "ProtoNorm and PFLlib; small clients are filled up where no draw suffices, so that any alpha works",
    )


def dirichlet(request: Request, options: DirichletOptions) -> list[Share]:
    """Return shares with Dir(alpha) label skew."""
    M, least = request.clients, options.min_size
    require(
        M * least <= len(request.y),
        f"partition.min_size = {least} for {M} clients needs {M * least} samples, but there are "
        f"{len(request.y)}: lower partition.min_size or data.clients",
    )
    require_clients(request)
    if options.self_balancing:
        return _draw_balanced(request, options)
    for restart in range(_RESTARTS):
        scope = ("partition", restart) if restart else ("partition",)
        rng = np.random.default_rng(derive(request.seed, *scope) % 2**32)
        for _ in range(_ATTEMPTS):
            counts = _independent(request, options.alpha, rng)
            if counts.sum(1).min() >= least:
                # Each class is divided in this order, so it must be random.
                order = torch.randperm(len(request.y), generator=generator(request.seed, *scope, "order"))
                return _shares(counts, [order[request.y[order] == c] for c in request.y.unique()])
    raise ConfigError(
        f"partition 'dirichlet': with alpha = {options.alpha:g}, not all {M} clients get {least} "
        "samples: set partition.self_balancing=true (the papers' split, with partition.min_size=1), raise "
        "partition.alpha, or lower partition.min_size or data.clients"
    )


def _shares(counts: np.ndarray[Any, Any], members: list[torch.Tensor]) -> list[Share]:
    """Return shares of ``counts`` ``(M, K)`` samples per client and class, cut from each class's ``members``."""
    pieces = [own.split(sizes) for own, sizes in zip(members, counts.T.tolist(), strict=True)]
    return [
        Share(name, torch.cat(part).sort().values)
        for name, part in zip(names(len(counts)), zip(*pieces, strict=True), strict=True)
    ]


def _independent(request: Request, alpha: float, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return ``(M, K)`` samples per client and class: one draw, with the arithmetic of flwr-datasets."""
    sizes = request.y.unique(return_counts=True)[1].numpy()
    shares = rng.dirichlet(np.full(request.clients, float(alpha)), len(sizes))
    ends = (shares.cumsum(1) * sizes[:, None]).astype(np.int64)
    ends[:, -1] = sizes
    counts: np.ndarray[Any, Any] = np.diff(ends, axis=1, prepend=0).T
    return counts


def _draw_balanced(request: Request, options: DirichletOptions) -> list[Share]:
    """Return shares; a client with ``N/M`` samples gets no further class."""
    classes, sizes = request.y.unique(return_counts=True)
    rng = np.random.default_rng(derive(request.seed, "partition"))
    counts = _draw_counts(sizes.numpy(), request.clients, options, rng)
    members = [(request.y == c).nonzero().flatten() for c in classes]
    orders = [
        torch.randperm(len(own), generator=generator(request.seed, "partition", c))
        for c, own in zip(classes.tolist(), members, strict=True)
    ]
    return _shares(counts, [own[order] for own, order in zip(members, orders, strict=True)])


def _draw_counts(
    sizes: np.ndarray[Any, Any], clients: int, options: DirichletOptions, rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Return ``(M, K)`` samples per client and class: the first draw in which every client has ``min_size``.

    At small ``alpha`` a class has hardly more than one holder, so that ten classes can hardly reach 50 clients: the
    public code then draws for ever. Here the best of many draws is filled up from the largest clients.
    """
    done, best, missing = 0, np.zeros((clients, len(sizes)), dtype=np.int64), np.inf
    for doubling in count():
        drawn = _draws(sizes, clients, options.alpha, min(2**doubling, _AT_ONCE, _DRAWS - done), rng)
        short = (options.min_size - drawn.sum(2)).clip(min=0).sum(1)
        place = int(short.argmin())
        if short[place] < missing:
            best, missing = drawn[place], short[place]
        done += len(drawn)
        if not missing:
            return best
        if done == _DRAWS:
            break
    few = int((best.sum(1) < options.min_size).sum())
    log.warning(
        "partition 'dirichlet': in none of %d draws with alpha = %g do all %d clients reach min_size = %d: "
        "%d are filled up from the largest",
        *(_DRAWS, options.alpha, clients, options.min_size, few),
    )
    for client in np.flatnonzero(best.sum(1) < options.min_size):
        while best[client].sum() < options.min_size:
            donor = best.sum(1).argmax()
            c = best[donor].argmax()
            best[donor, c] -= 1
            best[client, c] += 1
    return best


def _draws(
    sizes: np.ndarray[Any, Any], clients: int, alpha: float, number: int, rng: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Return ``(T, M, K)`` samples per client and class of several independent draws."""
    found = np.zeros((number, clients, len(sizes)), dtype=np.int64)
    for c, size in enumerate(sizes):
        open_ = found.sum(2) < sizes.sum() / clients
        shares = rng.dirichlet(np.full(clients, alpha), number) * open_
        # For a tiny alpha all that is left can be zero: in the limit, one of the open clients gets the whole class.
        one = np.eye(clients)[(rng.random((number, clients)) * open_).argmax(1)]
        shares = np.where(shares.sum(1, keepdims=True) > 0, shares, one)
        ends = shares.cumsum(1)
        ends = (ends / ends[:, -1:] * size).astype(np.int64)
        found[:, :, c] = np.diff(ends, axis=1, prepend=0)
    return found


partitions.register("dirichlet")(
    Partition("label skew: shares of each class drawn from Dir(alpha)", dirichlet, DirichletOptions)
)
