"""Partitions that are given rather than drawn: by natural ids, by a file of positions, and by domain."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protofed.compute.seeding import derive, generator
from protofed.data import checks
from protofed.data.partition import Partition, Request, Share, names, partitions, require_clients
from protofed.errors import ConfigError, DataError, require, unknown_name
from protofed.options import Options, build_options, option
from protofed.untrusted import limits
from protofed.untrusted.reading import parse_json, read_text

_SPLITS = ("train", "test", "validation")


@dataclass(frozen=True)
class NaturalOptions(Options):
    """One client per natural id, e.g. per writer."""

    min_samples: int = option(2, "minimum number of samples; natural ids with fewer are left out")
    names: bool = option(False, "name clients by their ids, with - for characters that names cannot have")


@dataclass(frozen=True)
class FileOptions(Options):
    """A JSON file ``{"name": [positions]}`` or ``{"name": {"train": [...], "test": [...]}}``."""

    path: str = option("", "the JSON file; positions count from 0 in the whole data set")


def natural(request: Request, options: NaturalOptions) -> list[Share]:
    """Return one share for each of ``clients`` random natural ids (0: all of them), in the order of the ids."""
    require(
        request.ids is not None,
        "partition 'natural': these data have no natural ids: use femnist, a federation folder, or set "
        "data.options.id_column",
    )
    assert request.ids is not None
    ids, member, count = request.ids.unique(return_inverse=True, return_counts=True)
    eligible = (count >= options.min_samples).nonzero().flatten()
    wanted = request.clients or len(eligible)
    require(
        1 <= wanted <= len(eligible),
        f"partition 'natural': {wanted} clients wanted, but {len(eligible)} of {len(ids)} natural ids have "
        f"{options.min_samples} samples or more: lower data.clients or partition.min_samples",
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


def from_file(request: Request, options: FileOptions) -> list[Share]:
    """Return the shares listed in a JSON file, with clients ordered by name."""
    require(bool(options.path), "partition.path is not set: partition 'file' needs a JSON file")
    path = Path(options.path).expanduser()
    with checks.readable(path, "not a readable JSON file"):
        content = parse_json(read_text(path, limits.JSON_BYTES), lambda pairs: _unique(pairs, path))
    if not isinstance(content, dict) or not content:
        raise DataError(f"{path}: expected an object that maps client names to positions")
    content = dict(zip(checks.client_names(content, str(path)), content.values(), strict=True))
    n = len(request.y)
    shares = [_share(name, content[name], n, f"{path}: {name}") for name in sorted(content)]
    owner = torch.full((n,), -1)
    for number, share in enumerate(shares):
        for part in share.positions():
            if bool((owner[part] >= 0).any()):
                twice = int(part[owner[part] >= 0][0])
                first = shares[int(owner[twice])].name
                raise DataError(f"{path}: {share.name}: position {twice} is already used by {first}")
            owner[part] = number
    return shares


def _unique(pairs: list[tuple[str, Any]], path: Path) -> dict[str, Any]:
    for key, times in Counter(key for key, _ in pairs).items():
        if times > 1:
            raise DataError(f"{path}: the name {key!r} occurs {times} times")
    return dict(pairs)


def _share(name: str, entry: Any, n: int, where: str) -> Share:
    if isinstance(entry, list):
        return Share(name, _positions(entry, n, where))
    if not isinstance(entry, dict) or "train" not in entry or "test" not in entry:
        raise DataError(f"{where}: expected a list of positions, or an object with 'train' and 'test'")
    for key in entry:
        if key not in _SPLITS:
            raise DataError(f"{where}: {unknown_name('split', key, _SPLITS)}")
    found = {split: _positions(part, n, f"{where}: {split}") for split, part in entry.items()}
    return Share(name, found["train"], found["test"], found.get("validation"))


def _positions(entry: Any, n: int, where: str) -> Tensor:
    if not isinstance(entry, list) or any(type(i) is not int for i in entry):
        raise DataError(f"{where}: expected a list of whole numbers")
    for i in entry:
        if not 0 <= i < n:
            raise DataError(f"{where}: position {i} is outside 0..{n - 1}")
    for i, times in Counter(entry).items():
        if times > 1:
            raise DataError(f"{where}: position {i} is used {times} times")
    return torch.tensor(sorted(entry), dtype=torch.int64)


partitions.register("natural")(
    Partition("one client per natural id, e.g. FEMNIST's writers", natural, NaturalOptions)
)
partitions.register("file")(Partition("positions per client from a JSON file", from_file, FileOptions))


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
    require(
        options.within != "file",
        "partition.within=file: its positions refer to all samples: use partition.name=file",
    )
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
