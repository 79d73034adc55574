"""Snapshots: the format of a client between visits, in memory, in files and in messages.

A snapshot is serialised as a flat dictionary of tensors named ``model.…``, ``state.…`` and ``received.…``, in
safetensors form with the format version in the header. The model's weights may be kept in a separate file, under
the plain names of its ``state_dict``, so that other programs can load them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from protofed.errors import CheckpointError, PayloadError
from protofed.storage import records
from protofed.storage.files import check_format, open_tensors, write_bytes
from protofed.storage.records import KEY, VERSION
from protofed.untrusted import claims


class Snapshot(NamedTuple):
    """Everything about a client that persists between visits."""

    model: dict[str, Tensor]
    state: dict[str, Tensor]
    #: Result of the method's ``receive`` for the last broadcast; empty before the first one
    received: dict[str, Tensor]


def flatten(snapshot: Snapshot) -> dict[str, Tensor]:
    """Return a snapshot as one flat dictionary."""
    return {
        f"{part}.{name}": tensor for part, tensors in snapshot._asdict().items() for name, tensor in tensors.items()
    }


def unflatten(tensors: Mapping[str, Tensor]) -> Snapshot:
    """Return a snapshot from one flat dictionary: the inverse of :func:`flatten`."""
    parts: dict[str, dict[str, Tensor]] = {part: {} for part in Snapshot._fields}
    for name, tensor in tensors.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = tensor
    return Snapshot(**parts)


def join_snapshot(model: dict[str, Tensor], rest: Mapping[str, Tensor], *received: dict[str, Tensor]) -> Snapshot:
    """Return a snapshot from its model, the rest as one flat dictionary, and what was received, if separate."""
    snapshot = unflatten(rest)._replace(model=model)
    return snapshot._replace(received=received[0]) if received else snapshot


def pack(snapshot: Snapshot) -> bytes:
    """Return a snapshot as the bytes of a safetensors file."""
    return bytes(records.pack(flatten(snapshot)))


def unpack(data: bytes) -> Snapshot:
    """Return a snapshot from the bytes of a safetensors file; the inverse of :func:`pack`."""
    try:
        snapshot = unflatten(load(data))
    except (SafetensorError, KeyError, ValueError) as error:
        raise PayloadError(f"state: not a client between visits ({claims.clean(error)})") from None
    return snapshot


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Write a record to a file of its own, atomically; the order of its tensors is that of their names."""
    write_bytes(path, records.pack(dict(sorted(tensors.items())), metadata))


def read(path: Path, weights: Path | None = None) -> Snapshot:
    """Read a snapshot, whose model's ``weights`` may be in another file."""
    try:
        snapshot = unflatten(read_weights(path))
    except KeyError as error:
        raise CheckpointError(f"{path}: damaged (it has {error})") from None
    return snapshot if weights is None else snapshot._replace(model=read_weights(weights))


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the tensors in a file written by :func:`write_tensors`."""
    with open_tensors(path) as file:
        check_format(path, _format(file.metadata()), VERSION)
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _format(metadata: Mapping[str, str] | None) -> int | str:
    """Return the format version of a file; 1 if the header has none."""
    written = (metadata or {}).get(KEY, "1")
    return int(written) if written.isdecimal() and len(written) < 10 else written
