"""Loading of data and partitioning into each client's training, test and validation samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.data import checks
from protofed.data.federation import is_federation, read_federation
from protofed.data.options import DataOptions, resolve_options
from protofed.data.partition import Request, Share, hold_out, limit_training, partitions, subset
from protofed.data.pool import Listing, Pool, open_dataset
from protofed.data.preparing import prepare, raw_parts
from protofed.data.shift import ShiftOptions, shift_domains
from protofed.data.tables import RawColumn, fit, moments, own
from protofed.errors import ConfigError, DataError, unknown_name
from protofed.samples import ClientData, FederatedData, Samples


def load(
    data: DataOptions,
    partition_name: str,
    partition_options: Any,
    seed: int,
    shift: ShiftOptions = ShiftOptions(),  # noqa: B008  (frozen)
) -> FederatedData:
    """Load ``data`` and divide it among clients.

    A federation folder (``data.source=path``) already assigns samples to clients, so the partition,
    ``data.clients`` and ``data.test_fraction`` do not apply to it.

    Args:
        partition_options: The partition's ``Options``, a mapping, or None for the defaults.

    Returns:
        Features in memory: images as uint8 ``(n, C, H, W)``, anything else as float32.
    """
    chosen: Any = resolve_options(partitions.get(partition_name).Options, partition_options, "partition")
    domains: dict[str, str] = {}
    if is_federation(data):
        federated, columns = read_federation(data, seed)
    else:
        federated, columns, domains = _divide(data, partition_name, chosen, seed)
    return prepare(shift_domains(federated, columns, shift, seed, domains), columns, data)


def _divide(
    data: DataOptions, partition_name: str, partition_options: Any, seed: int
) -> tuple[FederatedData, tuple[RawColumn, ...] | None, dict[str, str]]:
    """Return the raw samples of all clients, the columns of a table, and the domain of each client."""
    listing, y, class_names = _listing(data, seed)
    rows = _subset(data, listing, y, seed)
    ids, id_names = listing.id_codes()
    own = None if ids is None else ids[rows]
    labels = y[rows]
    request = Request(labels, len(class_names), own, data.clients, seed, id_names)
    assigned = partitions.get(partition_name).assign(request, partition_options)
    shares = [_split(share, labels, data, seed) for share in assigned]
    checks.check_classes([listing], [y])
    # Read only the samples that some client uses, all at once: whether images are grey depends on all of them.
    parts = [part for share in shares for part in share.positions()]
    used, where = torch.cat(parts).unique(return_inverse=True)
    (x,), columns, notes = raw_parts([listing], [checks.features(listing, rows[used])], data)
    places = zip(parts, where.split([len(part) for part in parts]), strict=True)
    samples = iter(Samples(torch.from_numpy(x.numpy()[at.numpy()]), labels[part]) for part, at in places)
    clients = tuple(
        ClientData(s.name, next(samples), next(samples), None if s.validation is None else next(samples))
        for s in shares
    )
    for client in clients:
        checks.check_validation(client, client.name)
    notes += _note_shared_samples(shares)
    federated = FederatedData(clients, len(class_names), class_names, tuple(x.shape[1:]), notes=notes)
    return federated, columns, {s.name: s.domain for s in shares}


def _note_shared_samples(shares: Sequence[Share]) -> tuple[str, ...]:
    """Return a note if clients are tested on samples that others train on."""
    trained = torch.cat([share.train for share in shares])
    tests = torch.cat([share.test for share in shares if share.test is not None])
    count = int(torch.isin(tests, trained).sum())
    if not count:
        return ()
    return (
        f"{count:,} of {len(tests):,} test samples are training samples of other clients, because there are too "
        "few samples: use fewer clients, or fewer samples for each.",
    )


def load_pool(data: DataOptions, seed: int) -> Pool:
    """Load ``data`` as one pool, not divided among clients."""
    if is_federation(data):
        raise ConfigError(f"{data.path}: a federation folder cannot be loaded as one pool: use load")
    listing, y, class_names = _listing(data, seed)
    rows = _subset(data, listing, y, seed)
    ids, _ = listing.id_codes()
    (x,), columns, _ = raw_parts([listing], [checks.features(listing, rows)], data)
    if columns is not None:  # nothing is standardised, because there are no training samples
        x = own(fit(columns, [], "none", data.missing), moments(x)).apply(x)
    return Pool(x, y[rows], class_names, None if ids is None else ids[rows])


def _listing(data: DataOptions, seed: int) -> tuple[Listing, Tensor, tuple[str, ...]]:
    listing = open_dataset(data.source, data, data.options, seed)
    if listing.columns is not None and not listing.names:  # files are read without them
        listing = _without(listing, listing.columns, data.drop)
    (y,), class_names = checks.encode([listing], data)
    return listing, y, class_names


def _without(listing: Listing, columns: tuple[RawColumn, ...], drop: Sequence[str]) -> Listing:
    names = [column.name for column in columns]
    for name in drop:
        if name not in names:
            raise DataError(f"{listing.where}: {unknown_name('dropped column', name, names)}")
    kept = [number for number, name in enumerate(names) if name not in drop]
    if not kept:
        raise DataError(f"{listing.where}: data.drop leaves no column")
    read = listing.read
    return replace(listing, columns=tuple(columns[n] for n in kept), read=lambda rows: read(rows)[:, kept])


def _subset(data: DataOptions, listing: Listing, y: Tensor, seed: int) -> Tensor:
    """Return the rows to use, int64 ascending."""
    if data.samples > len(y):
        raise ConfigError(f"data.samples = {data.samples}, but {listing.where} has {len(y)} samples")
    return subset(y, data.samples, generator(seed, "subset")) if data.samples else torch.arange(len(y))


def _split(share: Share, y: Tensor, data: DataOptions, seed: int) -> Share:
    """Hold out test and validation samples unless the partition did; ``y`` ``(n,)`` are the pool's labels."""
    train, test, validation = share.train, share.test, share.validation
    if test is None:
        kept, held = hold_out(y[train], data.test_fraction, generator(seed, "split", share.name))
        train, test = train[kept], train[held]
    if validation is None and data.validation_fraction:
        kept, held = hold_out(y[train], data.validation_fraction, generator(seed, "validation", share.name))
        train, validation = train[kept], train[held]
    return replace(
        share, train=train[limit_training(y[train], data, seed, share.name)], test=test, validation=validation
    )
