"""Preparation of raw samples: agreement of the files of a federation, and standardisation."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from protofed.data import checks
from protofed.data.comparing import Site, check, merge_columns
from protofed.data.options import DataOptions
from protofed.data.pool import Listing
from protofed.data.tables import TEXTS, RawColumn, Table, fit, moments, own, recode
from protofed.errors import ConfigError, DataError
from protofed.samples import ClientData, FederatedData, Samples
from protofed.text import few

log = logging.getLogger(__name__)
Columns = tuple[RawColumn, ...]
_SHOWN = 8  #: Files or clients that a note names


@dataclass(frozen=True)
class Agreed:
    """The agreement of the clients of a network."""

    input_shape: tuple[int, ...]
    table: Table | None = None


def raw_parts(
    listings: Sequence[Listing], x: Sequence[Tensor], data: DataOptions
) -> tuple[list[Tensor], Columns | None, tuple[str, ...]]:
    """Bring the features of several files into one form.

    Returns:
        Features of one shape and type; columns of tables and of numbers to standardise, or None; and notes on
        converted images and on classes to rename that do not occur.
    """
    notes = checks.absent_labels(listings, data)
    named = [(item.where, value) for item, value in zip(listings, x, strict=True)]
    if not any(c.kind in TEXTS for item in listings for c in item.columns or ()):
        if data.text:
            raise ConfigError(f"data.text={','.join(data.text)}: {listings[0].where} has no texts")
        if data.text_as == "tokens":
            where = listings[0].where
            raise ConfigError(f"data.text_as=tokens: {where} has no texts, which data.text names in a table")
    if any(item.columns is not None for item in listings):
        agreed = merge_columns([Site(item.where, columns=item.columns) for item in listings], data)
        _check_named(data, agreed, listings[0].where)
        recoded = [
            (where, recode(value, item.columns or (), agreed))
            for item, (where, value) in zip(listings, named, strict=True)
        ]
        return checks.same_shape(recoded), agreed, notes
    if data.categories or data.drop or data.keep or data.missing != "refuse":
        raise ConfigError(
            f"data.categories, data.drop, data.keep and data.missing are for tables, and {listings[0].where} is "
            "none"
        )
    named, grey = checks.same_mode(named)
    notes += colour_note([*(name for item in listings for name in item.converted), *grey])
    shaped = checks.same_shape(named)
    if data.standardise_by(table=False) == "none":
        return shaped, None, notes
    if not shaped[0].is_floating_point():
        option = "data.ranges" if data.ranges else f"data.standardise={data.standardise}"
        raise ConfigError(f"{option} is for tables, vectors and series: images have transforms.mean")
    columns = tuple(RawColumn(str(number)) for number in range(shaped[0].shape[1]))
    _check_named(data, columns, listings[0].where)
    return shaped, columns, notes


def _check_named(data: DataOptions, columns: Columns, where: str) -> None:
    for option in ("categories", "ranges"):
        for name in sorted(getattr(data, option).keys() - {"*", *(column.name for column in columns)}):
            raise ConfigError(f"data.{option}.{name}: {where} has no such column among its features")


def colour_note(grey: Sequence[str]) -> tuple[str, ...]:
    """Return a note on grey images that were converted to colour, if any."""
    names = few(grey, _SHOWN)
    return (f"Grey images were converted to colour, as the others are: {names}.",) if grey else ()


def prepare(federated: FederatedData, columns: Columns | None, data: DataOptions) -> FederatedData:
    """Return the data of all clients as models take them.

    Args:
        columns: None to leave the samples as they are.
    """
    if columns is None:
        return federated
    sums = [moments(client.train.x) for client in federated.clients]
    table = fit(columns, sums, data.standardise_by(table=True), data.missing, data.ranges)
    clients = tuple(_prepare(c, own(table, s)) for c, s in zip(federated.clients, sums, strict=True))
    notes = federated.notes + _note_clamped(federated, table)
    return replace(_with_table(federated, clients, table), notes=notes, tests=federated.test_hash())


def prepare_alone(
    federated: FederatedData, columns: Columns | None, data: DataOptions, agreed: Agreed | None, where: Path
) -> FederatedData:
    """Return the data of a single client of a network as models take them."""
    if agreed is None:
        return prepare(federated, columns, data)
    (client,), table = federated.clients, agreed.table
    if (table is None) != (columns is None):
        raise DataError(f"{where}: the federation agreed on {'no ' if table is None else ''}columns")
    if table is None or columns is None:
        channels = next(iter(agreed.input_shape), 0)
        federated = federated.map(lambda s: Samples(checks.add_channels(s.x, channels), s.y))
        federated = replace(federated, input_shape=tuple(federated.clients[0].train.x.shape[1:]))
    else:
        sites = [Site("the federation", columns=table.raw), Site(str(where), columns=columns)]
        given = replace(data, categories={c.name: c.categories for c in table.columns if c.categories})
        check(sites, given)
        common = merge_columns(sites, given)
        federated = federated.map(lambda s: Samples(recode(s.x, columns, common), s.y))
        client = federated.clients[0]
        for note in _note_clamped(federated, table):  # it stays at the node
            log.warning("%s: %s", client.name, note)
        client = _prepare(client, own(table, moments(client.train.x)))
        federated = _with_table(federated, (client,), table)
    return federated


def _note_clamped(federated: FederatedData, table: Table) -> tuple[str, ...]:
    """Return a note on values beyond declared ranges, if there are any."""
    found: Counter[str] = Counter()
    for client in federated.clients:
        for part in (client.train, client.test, client.validation):
            found.update({} if part is None else table.beyond(part.x))
    shown = few([f"{number:,} of {name}" for name, number in found.most_common()], _SHOWN)
    return (f"Values beyond their declared range were clamped to it (data.ranges): {shown}.",) if found else ()


def _with_table(federated: FederatedData, clients: tuple[ClientData, ...], table: Table) -> FederatedData:
    shape = table.shape(federated.input_shape)
    return replace(federated, clients=clients, table=table, input_shape=shape)


def _prepare(client: ClientData, table: Table) -> ClientData:
    return replace(client.map(lambda s: Samples(table.apply(s.x), s.y)), table=table)
