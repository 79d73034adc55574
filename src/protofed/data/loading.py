"""From options to every client's training and test samples."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from protofed.data import checks
from protofed.data.federation import is_federation, load_federation
from protofed.data.local import data_path
from protofed.data.options import DataOptions, resolve_options
from protofed.data.partition import Request, Share, partitions
from protofed.data.pool import Listing, Pool, datasets
from protofed.data.splits import hold_out, subset
from protofed.errors import ConfigError
from protofed.samples import ClientData, FederatedData, Samples
from protofed.seeding import generator


def load(data: DataOptions, partition_name: str, partition_options: Any, seed: int) -> FederatedData:
    """Load ``data`` and divide it among clients.

    A federation folder (``data.source=path``) already says who has what: the partition, ``data.clients``
    and ``data.test_fraction`` do not apply to it.

    Args:
        data: What to load.
        partition_name: A name in ``partitions``.
        partition_options: Its ``Options``, a mapping of them, or None for the defaults.
        seed: Decides subset, partition and splits; the same seed gives the same clients.

    Returns:
        All clients, features in memory; images as uint8 ``(n, C, H, W)``, anything else float32.

    Raises:
        ConfigError: For an unknown name or an option that does not fit.
        DataError: For data that are missing, unreadable or inconsistent.
    """
    data.check()
    partition = partitions.get(partition_name)
    chosen: Any = resolve_options(partition.Options, partition_options, "partition")
    if data.source == "path" and is_federation(data_path(data)):
        own: Any = resolve_options(datasets.get("path").Options, data.options, "data.options")
        return load_federation(data_path(data), data, own, seed)
    if data.samples and partition_name == "file":
        raise ConfigError("data.samples does not go with partition 'file', whose positions count in all samples")
    listing, y, class_names = _listing(data, seed)
    rows = _subset(data, listing, y, seed)
    ids = listing.id_codes()
    request = Request(y[rows], len(class_names), None if ids is None else ids[rows], data.clients, seed)
    shares = [_split(share, y[rows], data, seed) for share in partition.assign(request, chosen)]
    # Only what some client uses is read, and all of it at once: whether images are grey shows over the whole.
    parts = [part for share in shares for part in share.positions()]
    used, where = torch.cat(parts).unique(return_inverse=True)
    x = checks.same_shape([(listing.where, checks.features(listing, rows[used]))])[0]
    samples = iter(
        Samples(x[w], y[rows[part]]) for part, w in zip(parts, where.split([len(p) for p in parts]), strict=True)
    )
    clients = tuple(
        ClientData(s.name, next(samples), next(samples), None if s.validation is None else next(samples))
        for s in shares
    )
    return FederatedData(clients, len(class_names), class_names, tuple(x.shape[1:]))


def load_pool(data: DataOptions, seed: int) -> Pool:
    """Load ``data`` as one pool, not divided among clients.

    Raises:
        ConfigError: For an unknown name, an option that does not fit, or a federation folder.
        DataError: For data that are missing, unreadable or inconsistent.
    """
    data.check()
    if data.source == "path" and is_federation(data_path(data)):
        raise ConfigError(f"{data.path}: a federation folder is not one pool: use load")
    listing, y, class_names = _listing(data, seed)
    rows = _subset(data, listing, y, seed)
    ids = listing.id_codes()
    x = checks.same_shape([(listing.where, checks.features(listing, rows))])[0]
    return Pool(x, y[rows], class_names, None if ids is None else ids[rows])


def _listing(data: DataOptions, seed: int) -> tuple[Listing, Tensor, tuple[str, ...]]:
    entry = datasets.get(data.source)
    options: Any = resolve_options(entry.Options, data.options, "data.options")
    opened = entry.open(data, options, seed)
    listing = opened.listing(data.source) if isinstance(opened, Pool) else opened
    (y,), class_names = checks.encode([listing], data.classes)
    return listing, y, class_names


def _subset(data: DataOptions, listing: Listing, y: Tensor, seed: int) -> Tensor:
    """Return the rows to use, int64 ascending."""
    if data.samples > len(y):
        raise ConfigError(f"data.samples = {data.samples}, but {listing.where} has {len(y)} samples")
    return subset(y, data.samples, generator(seed, "subset")) if data.samples else torch.arange(len(y))


def _split(share: Share, y: Tensor, data: DataOptions, seed: int) -> Share:
    """Hold out test and validation samples where the partition has not; ``y`` ``(n,)`` is the pool's."""
    train, test, validation = share.train, share.test, share.validation
    if test is None:
        kept, held = hold_out(y[train], data.test_fraction, generator(seed, "split", share.name))
        train, test = train[kept], train[held]
    if validation is None and data.validation_fraction:
        kept, held = hold_out(y[train], data.validation_fraction, generator(seed, "validation", share.name))
        train, validation = train[kept], train[held]
    return Share(share.name, train, test, validation)
