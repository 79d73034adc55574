"""The rule ``clip``, which shortens disproportionate vectors and leaves out uploads that exceed all proportion.

Limits apply to the length of prototypes and their distance from the coordinate-wise median of their class, and to
the distance of weights from the broadcast; to the length of other tensors. All limits are multiples of medians of
the round, so they are scale-free. A tensor that a client leaves empty is not compared, nor what fewer than three
clients send.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from safetensors.torch import load, save
from torch import Tensor

from protofed.methods.contract import Upload
from protofed.runs.findings import Findings
from protofed.stages.robust.options import RobustOptions
from protofed.stages.robust.rules import median, shorten
from protofed.stages.robust.vectors import LEAST, Counts, Part, Vectors, collect, put_back
from protofed.wire.schema import Field, Payload


@dataclass(frozen=True)
class _Limits:
    """Limits on the vectors of one part."""

    length: float = float("inf")
    centres: Mapping[int, Tensor] | None = None  # median of the vectors of each class that has enough of them
    radius: float = float("inf")  # maximum distance from the median of the class
    update: float = float("inf")  # maximum distance from the broadcast


class Proportions:
    """Lengths of the vectors of a round, from which limits are derived; with ``keep_rows``, class vectors too."""

    def __init__(
        self, parts: list[Part], counts: Counts, reference: Payload | None, *, keep_rows: bool = True
    ) -> None:
        self.parts, self.counts, self.reference, self.keep_rows = parts, counts, reference or {}, keep_rows
        self.names: list[str] = []
        self._lengths: dict[str, list[Tensor]] = {part.name: [] for part in parts}
        self._updates: dict[str, list[Tensor]] = {part.name: [] for part in parts}
        self._rows: dict[str, list[Vectors]] = {part.name: [] for part in parts}

    def add(self, upload: Upload) -> None:
        """Measure an upload."""
        self.names.append(upload.client)
        for part in self.parts:
            vectors = collect(part, [upload], self.counts)
            self._lengths[part.name].append(vectors.values.norm(dim=1))
            distances = (vectors.values - self.origin(part, vectors.values)).norm(dim=1)
            self._updates[part.name].append(distances if vectors.values.shape[1] else distances[:0])
            if self.keep_rows and part.per_class and part.distinct and not part.field.exact:
                self._rows[part.name].append(vectors)

    def origin(self, part: Part, values: Tensor) -> Tensor:
        """Return the starting point ``(1, D)`` of a part's ``(R, D)`` vectors: the broadcast weights, or zero.

        A bounded field of that name, such as a moment of features, is no place from which clients started.
        """
        start, bounded = self.reference.get(part.name), part.field.limit != Field.limit
        if part.layout != "tensor" or bounded or start is None or start.numel() != values.shape[1]:
            return torch.zeros_like(values[:1])
        return start.reshape(1, -1).to(values.dtype)

    def excess(self) -> dict[str, float]:
        """Return the length of each client's longest vector as a multiple of the median length."""
        worst = dict.fromkeys(self.names, 0.0)
        groups = [self._lengths[p.name] for p in self.parts if p.per_class and not p.field.exact]
        weights = [self._lengths[p.name] for p in self.parts if not p.per_class and not p.field.exact]
        if weights:
            groups.append([torch.cat(one).norm().reshape(1) for one in zip(*weights, strict=True)])
        for lengths in groups:
            middle = _median(_typical(lengths))
            for client, own in zip(self.names, lengths, strict=True):
                if len(own) and middle > 0:
                    worst[client] = max(worst[client], float(own.max()) / middle)
        return worst

    def limits(self, options: RobustOptions, without: Collection[str]) -> dict[str, _Limits]:
        """Return the limits of every part."""
        kept = [i for i, name in enumerate(self.names) if name not in without]
        return {part.name: self._limits(part, options, kept) for part in self.parts}

    def _limits(self, part: Part, options: RobustOptions, kept: list[int]) -> _Limits:
        if not part.per_class:
            middle = _median([self._updates[part.name][i] for i in kept])
            return _Limits(update=options.update * middle if middle > 0 else float("inf"))
        lengths = [self._lengths[part.name][i] for i in kept]
        multiple, typical = options.norm, _typical(lengths)
        if part.field.exact or not part.distinct:
            # Variances, mixture weights and components of one client vary widely: compare only its longest vector.
            # Sums of fixed features have no lower bound, and the longest mean of one is alike at all clients.
            typical = [own.max().reshape(1) for own in lengths if len(own)]
            varies = part.field.minimum is not None or not part.distinct
            multiple = max(options.reject, options.norm) if varies else options.norm
        middle = _median(typical)
        length = multiple * middle if middle > 0 else float("inf")
        if not self._rows[part.name]:
            return _Limits(length)
        rows = [self._rows[part.name][i] for i in kept]
        values, classes = (torch.cat([getattr(v, name) for v in rows]) for name in ("values", "classes"))
        values, _ = shorten(values, torch.zeros_like(values[:1]), length)
        centres, distances = {}, []
        for label in classes.unique().tolist():
            own = values[classes == label]
            if len(own) >= LEAST:
                centres[label] = median(own)
                distances.append((own - centres[label]).norm(dim=1))
        middle = _median(distances)
        return _Limits(length, centres, options.distance * middle if middle > 0 else float("inf"))

    def alone(self, without: Collection[str]) -> list[int]:
        """Return the classes that exactly one client reported, ignoring the clients in ``without``."""
        reporters: dict[int, set[str]] = {}
        for rows in self._rows.values():
            for client, vectors in zip(self.names, rows, strict=False):
                for label in vectors.classes.tolist():
                    if client not in without:
                        reporters.setdefault(label, set()).add(client)
        return sorted(label for label, clients in reporters.items() if len(clients) == 1)


class Spool:
    """A sequence of uploads, kept in memory up to ``memory`` bytes and beyond that in a temporary file."""

    def __init__(self, memory: int = 2**28) -> None:
        self._left = memory
        self._kept: list[Upload] = []
        self._places: list[tuple[str, int]] = []
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this object
        weakref.finalize(self, self._file.close)

    def append(self, upload: Upload) -> None:
        """Add an upload at the end."""
        self._left -= sum(t.numel() * t.element_size() for t in upload.payload.values())
        if self._left >= 0:
            self._kept.append(upload)
            return
        data = save({name: tensor.contiguous() for name, tensor in upload.payload.items()})
        self._file.write(data)
        self._places.append((upload.client, len(data)))

    def __len__(self) -> int:
        return len(self._kept) + len(self._places)

    def __iter__(self) -> Iterator[Upload]:
        yield from self._kept
        start = 0
        for client, size in self._places:
            self._file.seek(start)
            start += size
            tensors = load(self._file.read(size))
            yield Upload(client, tensors)


def clip(
    uploads: Iterable[Upload],
    parts: list[Part],
    counts: Counts,
    reference: Payload | None,
    options: RobustOptions,
    findings: Findings,
) -> Iterator[Upload]:
    """Shorten the vectors of uploads to the limits of the round, in two passes that never hold all uploads."""
    measured = Proportions(parts, counts, reference)
    spool = Spool()
    for upload in uploads:
        spool.append(upload)
        measured.add(upload)
    left_out = too_long(measured, options, findings)
    findings.alone = measured.alone(left_out)
    limits = measured.limits(options, left_out)
    for upload in spool:
        if upload.client not in left_out:
            yield _clip(upload, measured, limits, findings)


def too_long(measured: Proportions, options: RobustOptions, findings: Findings) -> set[str]:
    """Find the clients whose longest vector exceeds ``reject`` times the median length."""
    if not options.reject:
        return set()
    excess = {client: multiple for client, multiple in measured.excess().items() if multiple > options.reject}
    for client, multiple in excess.items():
        findings.left_out[client] = f"a vector is {multiple:.3g} times as long as the median"
    return set(excess)


def _clip(upload: Upload, measured: Proportions, limits: Mapping[str, _Limits], findings: Findings) -> Upload:
    """Return an upload with its vectors shortened to the limits."""
    changed: list[Vectors] = []
    for part in measured.parts:
        vectors = collect(part, [upload], measured.counts)
        limit = limits[part.name]
        factors = torch.ones(len(vectors.values), dtype=vectors.values.dtype)
        values = vectors.values
        if part.per_class:
            values, factors = shorten(values, torch.zeros_like(values[:1]), limit.length)
            for row, label in enumerate(vectors.classes.tolist()):
                if limit.centres and label in limit.centres:
                    near, factor = shorten(values[row : row + 1], limit.centres[label], limit.radius)
                    values = values.index_copy(0, torch.tensor([row]), near)
                    factors[row] *= factor[0]
        else:
            values, factors = shorten(values, measured.origin(part, values), limit.update)
        if bool((factors < 1).any()):
            findings.shortened(upload.client, int((factors < 1).sum()), float(factors.min()))
            changed.append(vectors.with_values(values))
    return put_back([upload], changed)[0] if changed else upload


def _typical(lengths: list[Tensor]) -> list[Tensor]:
    """Return the (lower) median of each client's, so that all count alike, however many vectors they send."""
    return [own.median().reshape(1) for own in lengths if len(own)]


def _median(lengths: list[Tensor]) -> float:
    """Return the (lower) median of some lengths, or 0 if there are fewer than :data:`LEAST`."""
    together = torch.cat(lengths) if lengths else torch.zeros(0)
    return float(together.median()) if len(together) >= LEAST else 0.0
