"""What the server makes of the nodes' descriptions: the classes, and what every client has to know of all.

The server never sees a sample. It builds the federation it would have if all samples were empty, with their labels
as described, so that all that depends on numbers of samples is worked out by the same code as in a simulation.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass

import torch

from protofed.errors import ConfigError, DataError
from protofed.experiments.workshop import Architecture, Census
from protofed.flower.messages import Description
from protofed.training import ClientData, FederatedData, Samples


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
        """Undo :meth:`to_json`."""
        found = json.loads(text)
        return cls(
            tuple(found["classes"]),
            Architecture(**found["architecture"]),
            found["feature_dim"],
            found["class_size"],
            found["clients"],
            tuple(found["bfloat16"]),
        )

    @property
    def census(self) -> Census:
        """As the workshop takes it."""
        return Census((self.architecture,), self.feature_dim, self.class_size, self.clients)


def shared(census: Census, classes: tuple[str, ...], bfloat16: Collection[str] = ()) -> list[Shared]:
    """Return what each client is told."""
    rest = census.feature_dim, census.class_size, census.clients, tuple(bfloat16)
    return [Shared(classes, architecture, *rest) for architecture in census.architectures]


def class_order(descriptions: Sequence[Description], chosen: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of all classes in their order.

    Args:
        descriptions: Of all clients.
        chosen: The order, if the operator of the server gives it.

    Returns:
        ``chosen``, or the names that all have in common, or for numbered classes the longest list, or for named
        ones the sorted union, as a federation folder with the same clients would have it.

    Raises:
        DataError: If some clients number their classes and others name them, or numbers have different names, or a
            client has a class that is not chosen.
    """
    kinds = {d.named: d.name for d in descriptions if any(d.train) or any(d.test)}
    if len(kinds) > 1:
        raise DataError(f"{kinds[False]} numbers its classes, but {kinds[True]} names them: use one kind")
    for d in descriptions:
        missing = [name for name in d.classes if d.named and chosen and name not in chosen]
        if missing:
            raise DataError(f"{d.name}: has class {missing[0]!r}, which is not among those of the federation")
    if chosen:
        return tuple(chosen)
    lists = [d.classes for d in descriptions]
    if kinds == {} or len(set(lists)) == 1:
        return lists[0]
    if True in kinds:
        return tuple(sorted(set().union(*lists)))
    longest = max(lists, key=len)
    for d in descriptions:
        if d.classes != longest[: len(d.classes)]:
            raise DataError(f"{d.name}: its numbered classes have other names than those of the others")
    return longest


def labels_only(descriptions: Sequence[Description], classes: tuple[str, ...]) -> FederatedData:
    """Return the federation as the server knows it: samples without content, with the labels described.

    Raises:
        DataError: If clients have samples of different shapes, or classes beyond those of the federation.
    """
    first = descriptions[0]
    clients = []
    for d in descriptions:
        if d.input_shape != first.input_shape:
            raise DataError(
                f"{d.name}: samples are {d.input_shape}, but those of {first.name} are {first.input_shape}: all "
                "clients must share one shape"
            )
        train, test = (_samples(d, counts, classes) for counts in (d.train, d.test))
        held_out = Samples(torch.zeros(d.validation, 0), torch.zeros(d.validation, dtype=torch.int64))
        clients.append(ClientData(d.name, train, test, held_out if d.validation else None, d.settings))
    return FederatedData(tuple(clients), len(classes), classes, first.input_shape)


def _samples(described: Description, counts: tuple[int, ...], classes: tuple[str, ...]) -> Samples:
    if described.named:
        places = [classes.index(name) for name in described.classes]
    elif len(counts) > len(classes):
        raise ConfigError(f"{described.name}: has {len(counts)} classes, the federation {len(classes)}")
    else:
        places = list(range(len(counts)))
    y = torch.repeat_interleave(torch.tensor(places, dtype=torch.int64), torch.tensor(counts, dtype=torch.int64))
    return Samples(torch.zeros(len(y), 0), y)
