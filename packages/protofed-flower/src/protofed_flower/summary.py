"""The federation as the server knows it from the clients' descriptions, and its summary for each client.

The server never sees a sample. It builds the federation from the numbers of samples in the descriptions, so that
everything that depends on these numbers is computed by the same code as in a simulation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from protofed.config.architectures import places
from protofed.data.comparing import Site, merge_columns
from protofed.data.preparing import colour_note
from protofed.data.tables import Table, fit
from protofed.engine import ClientData, DataOptions, Encoding, Experiment, FederatedData, FederationSummary, Samples
from protofed.errors import PayloadError
from protofed.models.encoders import EncoderOptions, width_of
from protofed.stages.robust.vectors import limit_counts
from protofed.untrusted import claims, limits
from protofed.untrusted.decoding import decode, parse
from protofed_flower.messages import Description, Scored


def client_summaries(experiment: Experiment, summary: FederationSummary) -> list[str]:
    """Return the summary for each client, as JSON; of one place in a group of architectures, the same text."""
    each = [json.dumps(asdict(summary.of_client(place))) for place in range(places(experiment))]
    return [each[number % len(each)] for number in range(len(summary.architectures))]


def read_summary(text: str) -> FederationSummary:
    """Read the server's summary for one client."""
    try:
        found = decode(parse(text, "summary"), FederationSummary, error=ValueError, exact=True)
        if found.architectures or found.template is not None:
            raise ValueError("architectures: these follow from the plan")
    except ValueError as error:
        raise PayloadError(f"summary: {claims.clean(error)}") from None
    return found


@dataclass(frozen=True)
class DescribedSamples(Samples):
    """Samples of which the server knows only the numbers."""

    held: Tensor  #: ``(K,)`` int64 per class, rounded as ``disclosure`` specifies
    #: ``exact``; ``coarse`` for numbers rounded up to a power of two; ``none`` for 1 in place of any number above
    #: 0; or ``even`` if only their sum is true
    disclosure: str = "exact"

    @classmethod
    def of(cls, held: Tensor, disclosure: str = "exact") -> DescribedSamples:
        """Return samples without content, of ``(K,)`` int64 numbers."""
        return cls(torch.zeros(0), torch.zeros(0, dtype=torch.int64), held, disclosure)

    def __len__(self) -> int:
        return int(self.held.sum())

    def counts(self, num_classes: int) -> Tensor:
        """Return the disclosed number of samples of each class, ``(K,)`` int64."""
        return self.held

    @property
    def exact(self) -> bool:
        """Return whether the numbers are exact."""
        return self.disclosure == "exact"

    def most(self, num_classes: int) -> Tensor:
        """Return the largest possible number of samples of each class, ``(K,)`` int64."""
        if self.disclosure == claims.EVEN:
            return self.held.sum().expand(num_classes)
        return self.held.clamp(max=1) * limits.CLAIMED_SAMPLES if self.disclosure == "none" else self.held


def describe_federation(
    descriptions: Sequence[Description],
    classes: tuple[str, ...],
    data: DataOptions | None = None,
    encoder: EncoderOptions | None = None,
) -> FederatedData:
    """Return the federation as the server knows it from the clients' descriptions."""
    place = {name: number for number, name in enumerate(classes)}
    clients = []
    for d in descriptions:
        where = [place[name] for name in d.classes] if d.named else list(range(len(d.classes)))
        train, test = (_held(where, counts, len(classes)) for counts in (d.train, d.test))
        held_out = DescribedSamples.of(torch.tensor([d.validation]), d.counts) if d.validation else None
        splits = DescribedSamples.of(train, d.counts), DescribedSamples.of(test, d.counts)
        clients.append(ClientData(d.name, *splits, held_out, d.settings))
    table = _table(descriptions, data or DataOptions())
    # In colour, if some have images in colour.
    coloured = (d.input_shape for d in descriptions if len(d.input_shape) == 3 and d.input_shape[0] == 3)
    shape = next(coloured, descriptions[0].input_shape)
    grey = [d.name for d in descriptions if len(shape) == 3 and shape[0] == 3 and d.input_shape[0] == 1]
    prepared = table.shape(shape) if table else shape
    encoding = None
    if encoder is not None and descriptions and descriptions[0].encoder:
        encoding = Encoding(descriptions[0].encoder, prepared)
        prepared = (width_of(encoder, prepared, *((table.texts, table.views) if table else ())),)
    return FederatedData(
        tuple(clients), len(classes), classes, prepared, table, colour_note(grey), encoding=encoding
    )


def _table(descriptions: Sequence[Description], data: DataOptions) -> Table | None:
    """Return the preparation on which the clients agree; None if their samples need none."""
    stated = [(d.name, d.table) for d in descriptions if d.table is not None]
    if not stated:
        return None
    columns = merge_columns([Site(name, columns=tuple(c.raw for c in own)) for name, own in stated], data)
    by_name = [{c.name: c.moments for c in own} for _, own in stated]
    sums = [[own[column.name] for column in columns] for own in by_name]
    return fit(columns, sums, data.standardise_by(table=True), data.missing, data.ranges)


def _held(places: Sequence[int], counts: Sequence[int], K: int) -> Tensor:
    held = torch.zeros(K, dtype=torch.int64)
    held[torch.tensor(places, dtype=torch.int64)] = torch.tensor(counts, dtype=torch.int64)
    return held


def scored(descriptions: Sequence[Description], experiment: Experiment | None = None) -> dict[str, Scored]:
    """Return the numbers of samples that each client counts for, by name.

    A client that discloses none counts for the mean of the others.
    """
    withheld = [d.name for d in descriptions if d.counts == "none"]

    def numbers(number: Callable[[Description], int]) -> dict[str, int]:
        stated = {d.name: torch.tensor([number(d)]) for d in descriptions}
        kept = limit_counts(stated, experiment.robust, withheld) if experiment else stated
        found = {name: int(n) for name, n in kept.items()}
        disclosed = [n for name, n in found.items() if n and name not in withheld]
        usual = max(1, round(sum(disclosed) / len(disclosed))) if disclosed else 1
        return {name: min(n, 1) * usual if name in withheld else n for name, n in found.items()}

    train, test = numbers(lambda d: sum(d.train)), numbers(lambda d: sum(d.test))
    validation = numbers(lambda d: d.validation)
    found = {}
    for d in descriptions:
        counting, stated = (test[d.name], validation[d.name]), (sum(d.test), d.validation)
        reduced = stated if d.counts in ("exact", claims.EVEN) and counting != stated else None
        found[d.name] = Scored(train[d.name], *counting, shares=d.counts in ("coarse", "none"), stated=reduced)
    return found
