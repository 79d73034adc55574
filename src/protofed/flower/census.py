"""What the server makes of the descriptions of clients that fit, and what it tells each of them.

The server never sees a sample. It builds the federation it would have if all samples were elsewhere, with their
numbers as described, so that all that depends on numbers of samples is worked out by the same code as in a
simulation.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from protofed import claims, limits
from protofed.errors import PayloadError
from protofed.experiments.workshop import Architecture, Census
from protofed.flower.messages import Description, Scored
from protofed.samples import ClientData, FederatedData, Samples

MOST_OPTIONS = 64
MOST_KINDS = 1024
"""Of models, that a simulation computes in bfloat16."""


@dataclass(frozen=True)
class Shared:
    """What one client is told of the federation.

    Attributes:
        classes: Names of all classes, in their order.
        architecture: Its own.
        feature_dim: ``d`` of the first client (and of all, where the method needs that).
        class_size: Mean number of training samples of the classes, over all clients.
        clients: How many there are.
        bfloat16: In a simulation, the kinds of models computed in bfloat16; a deployed node decides itself.
    """

    classes: tuple[str, ...]
    architecture: Architecture
    feature_dim: int
    class_size: float
    clients: int
    bfloat16: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Return the record as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of(cls, text: str) -> Shared:
        """Undo :meth:`to_json`.

        Raises:
            PayloadError: If something is missing, of another type, or out of range.
        """
        try:
            found = claims.mapping(claims.parse(text, "census"), "census", cls.__dataclass_fields__)
            total = float(limits.CLIENTS) * limits.CLAIMED_SAMPLES
            return cls(
                claims.class_names(found["classes"]),
                _architecture(found["architecture"]),
                claims.whole(found["feature_dim"], "feature_dim", 1, limits.INPUT_SIDE),
                claims.number(found["class_size"], "class_size", -1.0, total),
                claims.whole(found["clients"], "clients", 0, limits.CLIENTS),
                _kinds(found["bfloat16"]),
            )
        except ValueError as error:
            raise PayloadError(f"census: {claims.clean(error)}") from None

    @property
    def census(self) -> Census:
        """As the workshop takes it."""
        return Census((self.architecture,), self.feature_dim, self.class_size, self.clients)


def _architecture(item: object) -> Architecture:
    found = claims.mapping(item, "architecture", Architecture.__dataclass_fields__)
    options = found["options"]
    if not isinstance(options, Mapping) or len(options) > MOST_OPTIONS:
        raise ValueError(f"options: expected a table of at most {MOST_OPTIONS} options")
    named = {claims.identifier(name, "option"): value for name, value in options.items()}
    return Architecture(claims.model(found["name"]), named, claims.whole(found["d"], "d", 1, limits.INPUT_SIDE))


def _kinds(values: object) -> tuple[str, ...]:
    kinds = claims.items(values, "bfloat16", MOST_KINDS)
    if not all(isinstance(kind, str) for kind in kinds):
        raise ValueError("bfloat16: expected a list of kinds of models")
    return tuple(kinds)


def shared(census: Census, classes: tuple[str, ...], bfloat16: Collection[str] = ()) -> list[Shared]:
    """Return what each client is told."""
    rest = census.feature_dim, census.class_size, census.clients, tuple(bfloat16)
    return [Shared(classes, architecture, *rest) for architecture in census.architectures]


@dataclass(frozen=True)
class Elsewhere(Samples):
    """Samples of which only the numbers are known here.

    Attributes:
        held: ``(K,)`` int64, how many there are of each class, as ``told`` says.
        told: ``exact``, ``coarse`` (the power of two above) or ``none``: 1 where there are any.
    """

    held: Tensor
    told: str = "exact"

    @classmethod
    def of(cls, held: Tensor, told: str = "exact") -> Elsewhere:
        """Return them without content."""
        return cls(torch.zeros(0), torch.zeros(0, dtype=torch.int64), held, told)

    def __len__(self) -> int:
        return int(self.held.sum())

    def counts(self, num_classes: int) -> Tensor:
        """Return ``(K,)`` int64: how many samples of each class there are, as told."""
        return self.held

    @property
    def exact(self) -> bool:
        """Whether the client withholds nothing."""
        return self.told == "exact"

    def most(self, num_classes: int) -> Tensor:
        """Return ``(K,)`` int64: how many samples of each class there can be."""
        return self.held.clamp(max=1) * limits.CLAIMED_SAMPLES if self.told == "none" else self.held


def elsewhere(descriptions: Sequence[Description], classes: tuple[str, ...]) -> FederatedData:
    """Return the federation as the server knows it; all descriptions fit each other and ``classes``."""
    place = {name: number for number, name in enumerate(classes)}
    clients = []
    for d in descriptions:
        where = [place[name] for name in d.classes] if d.named else list(range(len(d.classes)))
        train, test = (_held(where, counts, len(classes)) for counts in (d.train, d.test))
        held_out = Elsewhere.of(torch.tensor([d.validation]), d.counts) if d.validation else None
        splits = Elsewhere.of(train, d.counts), Elsewhere.of(test, d.counts)
        clients.append(ClientData(d.name, *splits, held_out, d.settings))
    return FederatedData(tuple(clients), len(classes), classes, descriptions[0].input_shape)


def _held(places: Sequence[int], counts: Sequence[int], K: int) -> Tensor:
    held = torch.zeros(K, dtype=torch.int64)
    held[torch.tensor(places, dtype=torch.int64)] = torch.tensor(counts, dtype=torch.int64)
    return held


def scored(descriptions: Sequence[Description]) -> dict[str, Scored]:
    """Return by how many samples each client counts; one that tells nothing counts as the others do on average."""
    parts: dict[str, Any] = {"train": lambda d: sum(d.train), "test": lambda d: sum(d.test)}
    parts["validation"] = lambda d: d.validation
    usual = {}
    for part, number in parts.items():
        told = [number(d) for d in descriptions if d.counts != "none" and number(d)]
        usual[part] = max(1, round(sum(told) / len(told))) if told else 1
    return {
        d.name: Scored(
            **{p: min(n(d), 1) * usual[p] if d.counts == "none" else n(d) for p, n in parts.items()},
            shares=d.counts != "exact",
        )
        for d in descriptions
    }
