"""Samples of a federation in shared memory, for worker processes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from protofed.errors import OutputError
from protofed.samples import FederatedData, Samples


class _Place(NamedTuple):
    """Rows ``start`` to ``stop`` of tensors number ``x`` and ``y``."""

    x: int
    y: int
    start: int
    stop: int


@dataclass(frozen=True)
class PackedData:
    """A federation whose samples are in a few shared tensors, so that passing it to a process copies nothing."""

    federated: FederatedData  # without its samples
    places: tuple[_Place, ...]  # of each split, in the order of :meth:`FederatedData.map`
    tensors: tuple[Tensor, ...]  # one pair of x and y per type and shape of x, in shared memory

    @classmethod
    def of(cls, federated: FederatedData) -> PackedData:
        """Copy the samples to shared memory; the layout of images is preserved."""
        groups: dict[Any, list[Samples]] = {}
        rows: dict[Any, int] = {}
        places: list[_Place] = []
        nothing = Samples(torch.zeros(0), torch.zeros(0, dtype=torch.int64))

        def pack(samples: Samples) -> Samples:
            key = (samples.x.dtype, samples.x.shape[1:])
            groups.setdefault(key, []).append(samples)
            number = 2 * list(groups).index(key)
            start = rows.get(key, 0)
            rows[key] = start + len(samples)
            places.append(_Place(number, number + 1, start, rows[key]))
            return nothing

        bare = federated.map(pack)
        tensors = [_share(part) for g in groups.values() for part in ([s.x for s in g], [s.y for s in g])]
        return cls(bare, tuple(places), tuple(tensors))

    def unpack(self) -> FederatedData:
        """Return the federation, with samples that are views of the shared tensors."""
        places = iter(self.places)

        def take(_: Samples) -> Samples:
            place = next(places)
            rows = slice(place.start, place.stop)
            return Samples(self.tensors[place.x][rows], self.tensors[place.y][rows])

        return self.federated.map(take)


def _share(parts: list[Tensor]) -> Tensor:
    whole = torch.cat(parts).cpu()
    try:
        result: Tensor = whole.share_memory_()
        return result
    except (OSError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        for name in re.findall(r"</(torch_\w+)>", reason):  # torch leaves what it could not fill
            Path("/dev/shm", name).unlink(missing_ok=True)
        raise OutputError(
            f"shared memory for {whole.nbytes} bytes of samples cannot be had ({reason}): make /dev/shm larger, or "
            "set execution.executor=sequential"
        ) from None
