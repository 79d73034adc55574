"""Attacks by hostile clients of a simulation, which send valid but harmful messages.

Each attack turns the honest payload of its client into another of the same form. Fields with a lower bound are left
unchanged, because the schema would refuse values outside the bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from protofed.options import Options, option
from protofed.stages.robust.vectors import Part, clamp_field, parts_of
from protofed.untrusted import limits
from protofed.wire.schema import Payload, Schema
from protofed.wire.validate import COUNT_LIMIT

Kind = Literal[
    "none",
    "sign_flip",
    "random",
    "swapped_labels",
    "huge",
    "counts",
    "backdoor",
    "free_rider",
    "alie",
    "inner_product",
    "min_max",
    "limit",
    "swapped_means",
]
SCALES: dict[str, float] = {"sign_flip": 100.0, "random": 3.0, "huge": 1e9, "limit": 2.0}


@dataclass(frozen=True)
class AttackOptions(Options):
    """Hostile clients in a simulation; accuracies are then also given for honest clients alone."""

    kind: Kind = option(
        "none",
        "sign_flip: vectors times -scale; random: Gaussian noise of scale standard deviations; swapped_labels: "
        "each class gets the vector of another; huge: ± scale everywhere; counts: the largest sample counts; "
        "backdoor: prototypes or weights that serve a trigger (BAPFL, arXiv 2509.12964); free_rider: the broadcast "
        "is sent back. From all honest uploads of the round, to look like them: alie: mean - z standard deviations "
        "(Baruch et al., 2019); inner_product: -scale times the mean; min_max: as far from the mean as honest ones "
        "are apart; limit: against the mean, scale times the median length; swapped_means: the next class's mean",
    )
    clients: int | tuple[str, ...] = option(
        1, "how many hostile clients, drawn by the seed, or their names", least=0
    )
    scale: float | None = option(
        None,
        "strength (none = 1, but 100 for sign_flip, 3 for random, 1e9 for huge, 2 for limit)",
        above=0,
        most=10**9,
    )
    samples: int = option(
        0,
        "training samples that each hostile client says it has, before training and in its uploads (0 = the truth)",
        least=0,
        most=limits.CLAIMED_SAMPLES,
    )
    target: int = option(0, "backdoor: the class that inputs with the trigger are to be given", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.samples and self.kind == "none":
            raise ValueError("samples has no effect without a kind of attack: set attack.kind, e.g. sign_flip")

    @property
    def strength(self) -> float:
        """The given scale, or the default of the attack."""
        return SCALES.get(self.kind, 1.0) if self.scale is None else self.scale


@dataclass(frozen=True)
class Knowledge:
    """Information available to a hostile client."""

    schema: Schema
    scale: float
    counts: Tensor
    broadcast: Payload | None
    generator: torch.Generator

    def free_parts(self) -> list[Part]:
        """Return the real fields without a lower bound."""
        return [part for part in parts_of(self.schema) if part.field.minimum is None]


Attack = Callable[[Payload, Knowledge], Payload]


def sign_flip(payload: Payload, known: Knowledge) -> Payload:
    """Multiply every vector by ``-scale``."""
    return {**payload, **{p.name: clamp_field(-known.scale * payload[p.name], p.field) for p in known.free_parts()}}


def random(payload: Payload, known: Knowledge) -> Payload:
    """Send Gaussian noise with ``scale`` times the standard deviation of the honest values."""
    changed = {}
    for part in known.free_parts():
        honest = payload[part.name]
        spread = honest.std() if honest.numel() > 1 else honest.abs().sum()
        noise = torch.randn(honest.shape, generator=known.generator, dtype=torch.float64).to(honest.dtype)
        changed[part.name] = clamp_field(known.scale * spread * noise, part.field)
    return {**payload, **changed}


def swap_labels(payload: Payload, known: Knowledge) -> Payload:
    """Permute vectors cyclically over classes: the client's prototypes, or the rows of a ``K``-way layer."""
    changed = {}
    for part in parts_of(known.schema):
        rows = payload[part.name]
        if part.layout == "table":
            held = known.counts.nonzero().squeeze(-1)
            changed[part.name] = rows.index_copy(0, held, rows[held.roll(1)])
        elif part.layout == "rows" or (rows.dim() and len(rows) == known.schema.num_classes):
            changed[part.name] = rows.roll(1, 0)
    return {**payload, **changed}


def huge(payload: Payload, known: Knowledge) -> Payload:
    """Replace every value by ``± scale``."""
    changed = {}
    for part in known.free_parts():
        signs = torch.randint(2, payload[part.name].shape, generator=known.generator) * 2 - 1
        changed[part.name] = clamp_field((known.scale * signs).to(payload[part.name].dtype), part.field)
    return {**payload, **changed}


def counts(payload: Payload, known: Knowledge) -> Payload:
    """Claim as many samples as a message can hold, so that this client dominates a weighted mean."""
    claimed = [name for name, field in known.schema.fields.items() if field.kind == "count" and field.described]
    return {**payload, **{name: torch.full_like(payload[name], COUNT_LIMIT - 1) for name in claimed}}


def inflate(payload: Payload, schema: Schema, factor: float) -> Payload:
    """Multiply sample counts and sums over samples by ``factor``, as a client would that claims more samples."""
    changed = {}
    for name, field in schema.fields.items():
        if field.kind == "count" and field.described:
            changed[name] = (payload[name].double() * factor).round().clamp(max=COUNT_LIMIT - 1).long()
        elif field.sums:
            changed[name] = (payload[name] * factor).clamp(min=-field.limit, max=field.limit)
    return {**payload, **changed}


def free_rider(payload: Payload, known: Knowledge) -> Payload:
    """Send back the broadcast with a little noise, as if trained; before the first broadcast, send only noise."""
    changed = {}
    for part in known.free_parts():
        honest = payload[part.name]
        copied = _read_broadcast(part, payload, known)
        noise = torch.randn(honest.shape, generator=known.generator, dtype=torch.float64).to(honest.dtype)
        scale = float(copied.std()) if copied.numel() > 1 else 1.0
        changed[part.name] = clamp_field(copied + 0.01 * (scale or 1.0) * noise, part.field)
    return {**payload, **changed}


def _read_broadcast(part: Part, payload: Payload, known: Knowledge) -> Tensor:
    """Return the broadcast values that correspond to a part of the upload; zeros where there are none."""
    copied = torch.zeros_like(payload[part.name])
    sent = (known.broadcast or {}).get(part.name)
    if sent is None:
        return copied
    if part.layout == "rows" and known.broadcast is not None and part.labels in known.broadcast:
        table = dict(zip(known.broadcast[part.labels].tolist(), sent, strict=True))
        for place, label in enumerate(payload[part.labels].tolist()):
            if label in table and table[label].shape == copied[place].shape:
                copied[place] = table[label]
        return copied
    return sent.clone() if sent.shape == copied.shape else copied


ATTACKS: dict[str, Attack] = {
    "sign_flip": sign_flip,
    "random": random,
    "swapped_labels": swap_labels,
    "huge": huge,
    "counts": counts,
    "free_rider": free_rider,
}
"""Attacks that only change the payload; ``backdoor`` is in :mod:`protofed.stages.attack.backdoor`."""
