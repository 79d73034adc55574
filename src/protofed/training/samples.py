"""The data a client trains on: plain tensors, resident in memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from protofed.errors import OutputError


@dataclass(frozen=True)
class Samples:
    """Labelled samples.

    Attributes:
        x: ``(n, *shape)``; images as uint8 ``(n, C, H, W)``, anything else as a floating type.
        y: ``(n,)`` int64 class labels.
    """

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def counts(self, num_classes: int) -> Tensor:
        """Return ``(K,)`` int64: how many samples of each class there are."""
        return torch.bincount(self.y, minlength=num_classes)


@dataclass(frozen=True)
class ClientData:
    """One client's share of the federation.

    Attributes:
        name: Unique, used in file names (letters, digits, ``-``, ``_``, ``.``).
        train: Training samples; may be empty.
        test: Test samples; may be empty.
        validation: Held out from training for model selection, or None.
        settings: What the client decides for itself: any of ``model``, ``d``, ``epochs``, ``batch_size``,
            ``lr`` (from its ``client.toml``).
    """

    name: str
    train: Samples
    test: Samples
    validation: Samples | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class FederatedData:
    """All clients' data and what they have in common.

    Attributes:
        clients: In a fixed order.
        num_classes: ``K``, over all clients.
        class_names: ``K`` names.
        input_shape: Shape of one sample, ``(C, H, W)`` or ``(F,)``.
    """

    clients: tuple[ClientData, ...]
    num_classes: int
    class_names: tuple[str, ...]
    input_shape: tuple[int, ...]

    def class_counts(self) -> Tensor:
        """Return ``(M, K)`` int64: training and test samples per client and class."""
        rows = [c.train.counts(self.num_classes) + c.test.counts(self.num_classes) for c in self.clients]
        return torch.stack(rows) if rows else torch.zeros(0, self.num_classes, dtype=torch.int64)

    def map(self, function: Callable[[Samples], Samples]) -> FederatedData:
        """Return the same federation with ``function`` of every split."""
        clients = tuple(
            replace(
                c,
                train=function(c.train),
                test=function(c.test),
                validation=None if c.validation is None else function(c.validation),
            )
            for c in self.clients
        )
        return replace(self, clients=clients)


class _Place(NamedTuple):
    """Rows ``start … stop`` of the tensors number ``x`` and ``y``."""

    x: int
    y: int
    start: int
    stop: int


@dataclass(frozen=True)
class PackedData:
    """A federation whose samples lie in a few shared tensors, so that handing it to a process copies nothing.

    Attributes:
        federated: All but the samples.
        places: Of each client's training, test and validation samples.
        tensors: One pair of x and y for each type and shape of x, in shared memory.
    """

    federated: FederatedData
    places: tuple[tuple[_Place | None, ...], ...]
    tensors: tuple[Tensor, ...]

    @classmethod
    def of(cls, federated: FederatedData) -> PackedData:
        """Move the samples to shared memory; the layout of images is kept."""
        groups: dict[Any, list[Samples]] = {}
        rows: dict[Any, int] = {}
        found: list[tuple[_Place | None, ...]] = []

        def place(samples: Samples | None) -> _Place | None:
            if samples is None:
                return None
            key = (samples.x.dtype, samples.x.shape[1:])
            groups.setdefault(key, []).append(samples)
            number = 2 * list(groups).index(key)
            start = rows.get(key, 0)
            rows[key] = start + len(samples)
            return _Place(number, number + 1, start, rows[key])

        for c in federated.clients:
            found.append((place(c.train), place(c.test), place(c.validation)))
        tensors = [_shared(part) for g in groups.values() for part in ([s.x for s in g], [s.y for s in g])]
        nothing = Samples(torch.zeros(0), torch.zeros(0, dtype=torch.int64))
        return cls(federated.map(lambda _: nothing), tuple(found), tuple(tensors))

    def unpack(self) -> FederatedData:
        """Return the federation; its samples are parts of the shared tensors."""

        def take(place: _Place) -> Samples:
            rows = slice(place.start, place.stop)
            return Samples(self.tensors[place.x][rows], self.tensors[place.y][rows])

        clients = tuple(
            replace(
                c, train=take(train), test=take(test), validation=None if validation is None else take(validation)
            )
            for c, (train, test, validation) in zip(self.federated.clients, self.places, strict=True)
            if train is not None and test is not None
        )
        return replace(self.federated, clients=clients)


def _shared(parts: list[Tensor]) -> Tensor:
    """Return the parts as one tensor in shared memory.

    Raises:
        OutputError: If there is too little of it.
    """
    whole = torch.cat(parts).cpu()
    try:
        return whole.share_memory_()
    except (OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        for name in re.findall(r"</(torch_\w+)>", reason):  # torch leaves what it could not fill
            Path("/dev/shm", name).unlink(missing_ok=True)
        raise OutputError(
            f"shared memory for {whole.nbytes} bytes of samples cannot be had ({reason}): make /dev/shm larger, or "
            "set execution.executor=sequential"
        ) from None
