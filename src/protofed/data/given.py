"""Partitions by the origin of samples: a client per natural id, and domains of several clients."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from protofed.compute.seeding import derive, generator
from protofed.data import checks
from protofed.data.partition import Partition, Request, Share, names, partitions, require_clients
from protofed.errors import ConfigError, require
from protofed.options import Options, build_options, option


@dataclass(frozen=True)
class NaturalOptions(Options):
    """One client per natural id with two samples or more, e.g. per writer."""

    names: bool = option(False, "name clients by their ids, with - for characters that names cannot have")


def natural(request: Request, options: NaturalOptions) -> list[Share]:
    """Return one share for each of ``clients`` random natural ids (0: all of them), in the order of the ids."""
    require(
        request.ids is not None,
        "partition 'natural': these data have no natural ids: use femnist, a federation folder, or set "
        "data.options.id_column",
    )
    assert request.ids is not None
    ids, member, count = request.ids.unique(return_inverse=True, return_counts=True)
    eligible = (count > 1).nonzero().flatten()
    wanted = request.clients or len(eligible)
    require(
        1 <= wanted <= len(eligible),
        f"partition 'natural': {wanted} clients wanted, but {len(eligible)} of {len(ids)} natural ids have "
        "two samples or more: lower data.clients",
    )
    pick = torch.randperm(len(eligible), generator=generator(request.seed, "partition"))[:wanted]
    chosen = eligible[pick.sort().values]
    titles = name_clients([request.id_names[i] for i in ids[chosen]]) if options.names else names(wanted)
    # Sort all samples once instead of making one pass per id: there may be thousands of ids.
    by_id = member.argsort(stable=True)
    starts = count.cumsum(0) - count
    return [
        Share(name, by_id[starts[c] : starts[c] + count[c]])
        for name, c in zip(titles, chosen.tolist(), strict=True)
    ]


def name_clients(ids: list[str]) -> list[str]:
    """Return natural ids as names of clients, which lack most punctuation."""
    plain = [re.sub(r"[^\w -]+", "-", re.sub(r"[.,'’]", "", name)).strip(" -_") for name in ids]
    return checks.client_names(plain, "partition.names=true")


partitions.register("natural")(
    Partition("one client per natural id, e.g. FEMNIST's writers", natural, NaturalOptions)
)


@dataclass(frozen=True)
class DomainOptions(Options):
    """Number of domains, and the partition of each among its clients."""

    domains: int = option(
        0,
        "domains: 0 for one per natural id (hospital, camera, data set of several), or so many random parts of the "
        "data, which only the options of shift make different",
        least=0,
    )
    within: str = option("iid", "partition of a domain's samples among its clients, e.g. dirichlet")
    options: dict[str, Any] = option({}, "options of that partition, e.g. alpha")


def domain(request: Request, options: DomainOptions) -> list[Share]:
    """Return shares of one domain each; the numbers of clients per domain differ by at most one."""
    require_clients(request)
    inner = partitions.get(options.within)
    chosen: Any = build_options(inner.Options, options.options, "partition.options")
    natural, M = {} if options.domains else _natural(request), request.clients
    D = options.domains or len(natural)
    other = "lower partition.domains" if options.domains else "use partition=natural, or set partition.domains"
    require(D <= M, f"partition 'domain': {D} domains for {M} clients: raise data.clients, or {other}")
    parts = natural
    if not natural:  # in proportion to the clients of each
        order = torch.randperm(len(request.y), generator=generator(request.seed, "partition", "domains"))
        pieces, width = order.tensor_split(M), len(str(D - 1))
        parts = {f"domain-{d:0{width}d}": torch.cat(pieces[d::D]).sort().values for d in range(D)}
    shares = []
    for number, (name, rows) in enumerate(parts.items()):
        asked = replace(
            request,
            y=request.y[rows],
            ids=None,
            clients=M // D + (number < M % D),
            seed=derive(request.seed, "domain", name),
        )
        try:
            found = inner.assign(asked, chosen)
        except ConfigError as error:
            raise ConfigError(f"domain {name}: {error}") from None
        for label, share in zip(names(len(found)), found, strict=True):
            own = name + label.removeprefix("client")
            test, validation = (None if part is None else rows[part] for part in (share.test, share.validation))
            shares.append(Share(own, rows[share.train], test, validation, domain=name))
    return shares


def _natural(request: Request) -> dict[str, Tensor]:
    """Return the samples of each natural id, by name."""
    require(
        request.ids is not None,
        "partition 'domain': these data have no natural ids that say where a sample is from: set "
        "partition.domains, and options of shift, which make domains differ",
    )
    assert request.ids is not None
    ids = request.ids.unique()
    return {
        name: (request.ids == i).nonzero().flatten()
        for name, i in zip(name_clients([request.id_names[i] for i in ids]), ids.tolist(), strict=True)
    }


partitions.register("domain")(
    Partition(
        "clients of one origin, or of one transform of shift, each; any partition within", domain, DomainOptions
    )
)
