"""Division of uploads into comparable vectors, and the numbers of samples that clients are believed to have."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from protofed.errors import PayloadError
from protofed.methods.contract import Upload
from protofed.stages.robust.options import RobustOptions
from protofed.wire.schema import Field, Payload, Schema

LEAST = 3  #: Minimum number of clients, or of vectors, for which a median is meaningful
Layout = Literal["rows", "table", "tensor", "varying"]


@dataclass(frozen=True)
class Part:
    """One real field of a schema, as robust rules see it."""

    name: str
    field: Field
    #: ``rows``: one row per label sent; ``table``: one row for each of the ``K`` classes; ``tensor``: the same
    #: shape for every client; ``varying``: a shape chosen by the sender
    layout: Layout
    labels: str = ""  # name of the field with the labels of the rows, for ``rows``
    distinct: bool = True  # whether a client sends at most one row per class

    @property
    def per_class(self) -> bool:
        """Return whether its vectors belong to classes."""
        return self.layout in ("rows", "table")

    @property
    def comparable(self) -> bool:
        """Return whether the vectors of different clients correspond to each other, coordinate by coordinate."""
        return self.distinct and self.layout != "varying"


def parts_of(schema: Schema) -> list[Part]:
    """Return the real fields of a schema with their layout."""
    labels = {f.shape[0]: n for n, f in schema.fields.items() if f.kind == "label" and len(f.shape) == 1}
    parts = []
    for name, field in schema.fields.items():
        if field.kind != "real":
            continue
        first = field.shape[0] if field.shape else ""
        if first in labels:
            kind: Layout = "rows"
        elif field.sums:
            kind = "table"
        else:
            free = {s for s in field.shape if isinstance(s, str)} - schema.sizes.keys()
            kind = "varying" if free else "tensor"
        owner = labels.get(first, "") if kind == "rows" else ""
        distinct = not owner or schema.fields[owner].unique
        parts.append(Part(name, field, kind, owner, distinct))
    return parts


@dataclass(frozen=True)
class Vectors:
    """The vectors of one part over all uploads of a round."""

    part: Part
    values: Tensor  # ``(R, D)`` vectors; sums over samples are divided by their number
    senders: Tensor  # ``(R,)`` int64 position of the sender among the uploads
    classes: Tensor  # ``(R,)`` int64 class of each vector; 0 for tensors
    places: Tensor  # ``(R,)`` int64 row in the sender's tensor; 0 for tensors
    scales: Tensor  # ``(R,)`` divisors of the values

    def by_class(self) -> Iterator[tuple[int, Tensor]]:
        """Yield each class with the positions ``(n,)`` of its vectors."""
        for label in self.classes.unique().tolist():
            yield label, (self.classes == label).nonzero().squeeze(-1)

    def with_values(self, values: Tensor) -> Vectors:
        """Return the same vectors with other values."""
        return replace(self, values=values)


Counts = Mapping[str, Tensor]  #: ``(K,)`` int64 samples per class that each client described


def rows_of(part: Part, upload: Upload, counts: Counts) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the vectors of a part in one upload.

    Returns:
        Values ``(r, D)``, and classes, places and scales ``(r,)`` as in :class:`Vectors`.
    """
    tensor = upload.payload[part.name]
    if not part.per_class:
        zero = torch.zeros(1, dtype=torch.int64)
        return tensor.reshape(1, -1), zero, zero, torch.ones(1, dtype=tensor.dtype)
    held = counts[upload.client]
    if part.layout == "table":
        places = classes = held.nonzero().squeeze(-1)
    else:
        classes = upload.payload[part.labels]
        places = torch.arange(len(classes))
    samples = held[classes].clamp(min=1) if part.field.sums else torch.ones_like(classes)
    scales = samples.to(tensor.dtype)
    width = math.prod(tensor.shape[1:])
    return tensor[places].reshape(len(places), width) / scales.unsqueeze(1), classes, places, scales


def collect(part: Part, uploads: Sequence[Upload], counts: Counts) -> Vectors:
    """Return the vectors of a part, of any layout but ``varying``, in all uploads."""
    found = [rows_of(part, upload, counts) for upload in uploads]
    senders = torch.cat([torch.full((len(rows),), i) for i, (rows, *_) in enumerate(found)])
    values, classes, places, scales = (torch.cat([row[k] for row in found]) for k in range(4))
    return Vectors(part, values, senders, classes, places, scales)


def put_back(uploads: Sequence[Upload], found: Sequence[Vectors]) -> list[Upload]:
    """Return the uploads with their vectors replaced; all other tensors are shared, not copied."""
    payloads: list[Payload] = [dict(upload.payload) for upload in uploads]
    for vectors in found:
        part = vectors.part
        values = clamp_field(vectors.values * vectors.scales.unsqueeze(1), part.field)
        for sender in vectors.senders.unique().tolist():
            mine = vectors.senders == sender
            old = payloads[sender][part.name]
            if part.per_class:
                new = old.clone()
                new[vectors.places[mine]] = values[mine].reshape(-1, *old.shape[1:]).to(old.dtype)
            else:
                new = values[mine].reshape(old.shape).to(old.dtype)
            payloads[sender][part.name] = new
    return [Upload(upload.client, payload) for upload, payload in zip(uploads, payloads, strict=True)]


def clamp_field(values: Tensor, field: Field) -> Tensor:
    """Clamp values to the bounds of a field, which rounding may have exceeded."""
    if field.minimum is not None:
        values = values.clamp(min=field.minimum)
    return values.clamp(min=-field.limit, max=field.limit)


def cap_counts(upload: Upload, schema: Schema, counts: Counts, share: float = 1.0) -> tuple[Upload, list[str]]:
    """Cap sample counts at those the client may state, and scale its sums over samples alike.

    Args:
        share: Ratio of those to the counts that the client described, from which it made its sums.

    Returns:
        The upload, and the names of the fields that were reduced.
    """
    held, cut = counts[upload.client], []
    payload = dict(upload.payload)
    for name, field in schema.fields.items():
        if field.sums and share < 1:
            payload[name] = payload[name] * share
            cut.append(name)
        if field.kind != "count" or not field.described:
            continue
        limit = _most(field, upload.payload, schema, held)
        if bool((payload[name] > limit).any()):
            payload[name] = torch.minimum(payload[name], limit)
            cut.append(name)
    return (Upload(upload.client, payload) if cut else upload), cut


def _most(field: Field, payload: Payload, schema: Schema, held: Tensor) -> Tensor:
    """Return the largest counts a client with ``held`` samples per class may report."""
    if not field.shape or schema.limits.get(str(field.shape[0])) == 1:  # one number, perhaps left out
        return held.sum()
    if field.shape == (schema.num_classes,):
        return held
    for name, other in schema.fields.items():
        if other.kind == "label" and other.shape == field.shape:
            return held[payload[name]]
    raise PayloadError(f"count of shape {field.shape}: expected one number, one per class or one per label")


def limit_counts(stated: Counts, options: RobustOptions, withheld: Collection[str] = ()) -> dict[str, Tensor]:
    """Return the counts that clients state, reduced in proportion where a client states too many in all.

    The limit is ``robust.weight`` times the (lower) median over the clients with samples, or what
    ``robust.admitted`` sets for a client. Counts of single classes have no limit of their own, because those of
    honest clients differ by three orders of magnitude.

    Args:
        withheld: Clients whose counts are not numbers of samples: these neither change nor count in the median.
    """
    known = {name: int(counts.sum()) for name, counts in stated.items() if name not in withheld}
    numbers = sorted(number for number in known.values() if number)
    limit = max(known.values(), default=0)
    if options.most and len(numbers) >= LEAST:
        limit = int(options.most * numbers[(len(numbers) - 1) // 2])
    most = {name: min(number, options.admitted.get(name, limit)) for name, number in known.items()}
    return {name: scale_counts(c, most[name]) if name in most else c for name, c in stated.items()}


def scale_counts(counts: Tensor, total: int) -> Tensor:
    """Scale int64 counts to integers with exactly the sum ``total``; both sums are below 2³¹."""
    number = int(counts.sum())
    if number in (0, total):
        return counts
    ends = counts.cumsum(0) * total // number
    return ends.diff(prepend=ends.new_zeros(1))
