"""All clients of a federation. Their models rest in a store and are loaded onto the device one at a time.

Therefore a federation of a thousand clients needs device memory for one model per architecture, and any process
that can reach the store can run a visit.
"""

from __future__ import annotations

import copy
import itertools
import os
import secrets
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from protofed.errors import CheckpointError, OutputError, writing
from protofed.methods.contract import SplitModel
from protofed.samples import Samples
from protofed.storage.records import pack, read_at, unpack, write_at
from protofed.storage.snapshots import Snapshot, flatten, join_snapshot
from protofed.untrusted.reading import reason
from protofed.visits.client import Member

PAGE = 4096  #: Bytes of a page; no two records share one
WORTH_SHARING = 2**16
"""Bytes of what a client received from which on clients in memory share it: below, copying takes less time."""
AT_ONCE = 2**26  #: Bytes of a checkpoint that may wait in memory to be written


class Store(Protocol):
    """Keeps the snapshots of clients between visits."""

    def read(self, name: str) -> Snapshot:
        """Return the snapshot of a client, whose tensors must not be modified."""
        ...

    def write(self, name: str, snapshot: Snapshot, *, model: bool = True) -> None:
        """Store a copy of a client's snapshot.

        Args:
            model: The model has changed; otherwise the stored one is kept.
        """
        ...

    def share(self, name: str, other: str, state: dict[str, Tensor]) -> None:
        """Store a client that starts from the model of another one, without storing the model again."""
        ...

    def close(self) -> None:
        """Free all snapshots."""
        ...

    def freeze(self) -> StoreSnapshot:
        """Return all clients as they are now, to be written while others are stored."""
        ...


class StoreSnapshot:
    """All clients of a store as they were at one moment, whatever is stored from then on.

    Args:
        parts: Handles of each client's model, the rest of its snapshot and what it received; some share them.
        copy: Writes the record of a handle to a file, and returns the number of bytes.
        release: Called with the handles of each client once they have been written.
        size: Bytes of all of them.
    """

    def __init__(
        self,
        parts: Mapping[str, tuple[Any, ...]],
        copy: Callable[[Any, BinaryIO], int],
        release: Callable[[tuple[Any, ...]], None],
        size: int,
    ) -> None:
        self.parts = dict(parts)
        self.size = size
        self._copy = copy
        self._release = release

    def write(self, file: BinaryIO) -> dict[str, list[list[int]]]:
        """Write all clients to an empty file; any thread may do this, once.

        Returns:
            Position and length of each client's model, the rest of its snapshot and what it received, by name.
        """
        places: dict[Any, list[int]] = {}
        written = synced = 0
        index = {}
        for name, handles in self.parts.items():
            for handle in handles:
                if (key := _key(handle)) not in places:
                    places[key] = [written, self._copy(handle, file)]
                    written += places[key][1]
            index[name] = [places[_key(handle)] for handle in handles]
            if written - synced > AT_ONCE:  # what is to be written must not pile up in memory
                file.flush()
                os.fsync(file.fileno())
                synced = written
            self._release(handles)
        return index


def _key(handle: Any) -> Any:
    return handle if isinstance(handle, Place) else id(handle)


class Memory(Store):
    """Store in host memory."""

    def __init__(self) -> None:
        self.snapshots: dict[str, Snapshot] = {}
        self._received: dict[str, Tensor] = {}

    def read(self, name: str) -> Snapshot:
        """Return the client's snapshot."""
        return self.snapshots[name]

    def write(self, name: str, snapshot: Snapshot, *, model: bool = True) -> None:
        """Store a copy of a client's snapshot."""
        kept = _on_host(snapshot.model) if model else self.snapshots[name].model
        if not _same(snapshot.received, self._received):  # often all clients receive the same, which is kept once
            self._received = _on_host(snapshot.received)
        self.snapshots[name] = Snapshot(kept, _on_host(snapshot.state), self._received)

    def share(self, name: str, other: str, state: dict[str, Tensor]) -> None:
        """Store a client that starts from the model of another one."""
        self.snapshots[name] = Snapshot(self.snapshots[other].model, _on_host(state), {})

    def freeze(self) -> StoreSnapshot:
        """Return all clients as they are now; nobody changes a snapshot."""

        def copy(part: dict[str, Tensor] | Snapshot, file: BinaryIO) -> int:
            return file.write(pack(flatten(part) if isinstance(part, Snapshot) else part))

        parts = {n: (s.model, s._replace(model={}, received={}), s.received) for n, s in self.snapshots.items()}
        size = sum(tensor.nbytes for snapshot in self.snapshots.values() for tensor in flatten(snapshot).values())
        return StoreSnapshot(parts, copy, lambda _: None, size)

    def close(self) -> None:
        """Free all snapshots."""
        self.snapshots.clear()


class Place(NamedTuple):
    """Place of a record: a file of the store's folder, the position of the first byte, and the number of bytes."""

    file: str
    offset: int
    length: int

    @property
    def room(self) -> int:
        """Number of bytes that are reserved: a little more than the record's, so that others fit there later."""
        step = max(PAGE, 1 << max(0, self.length.bit_length() - 4))
        return -(-self.length // step) * step


class Address(NamedTuple):
    """Places of a client's records: the model's weights, the rest of the snapshot, and what it received."""

    model: Place
    rest: Place
    received: Place


class _Opened:
    """Files of a folder, which stay open as long as this object exists."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, BinaryIO] = {}

    def get(self, name: str) -> BinaryIO:
        if name not in self._files:
            self._files[name] = open(self.folder / name, "r+b", buffering=0, opener=_create)  # noqa: SIM115
        return self._files[name]

    def close(self) -> None:
        while self._files:
            self._files.popitem()[1].close()

    __del__ = close


def _create(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CREAT, 0o600)


class Files(Store):
    """Store of records in a folder that several processes may share; each process appends to a file of its own.

    A record that is in use is never modified: every write goes to a place that no client uses, so the old record
    stays valid if the write fails. The owner, one process, keeps account of the places; others write where it lets
    them. Clients that received the same share a record of it.

    Args:
        owner: This process keeps account of the places, and removes the folder.

    Attributes:
        free: Places that may be written over, by their room.
    """

    def __init__(self, folder: Path, *, owner: bool = True) -> None:
        self.folder = folder
        self.owner = owner
        self.addresses: dict[str, Address] = {}
        self.free: dict[int, list[Place]] = {}
        self._users: Counter[Place] = Counter()
        self._lock = threading.Lock()
        self._files = _Opened(folder)
        self._own = f"{secrets.token_hex(4)}.records"
        self._end = 0
        self._received: tuple[Place, bytes] | None = None

    def read(self, name: str) -> Snapshot:
        """Return the client's snapshot."""
        with self._readable():
            return join_snapshot(*(unpack(self._load(p, self._files)) for p in self.addresses[name]))

    def write(self, name: str, snapshot: Snapshot, *, model: bool = True) -> None:
        """Write the snapshot to free places."""
        place = self._write(pack(snapshot.model)) if model else self.addresses[name].model
        self._adopt(name, place, snapshot._replace(model={}))

    def share(self, name: str, other: str, state: dict[str, Tensor]) -> None:
        """Store a client that starts from the model of another one."""
        self._adopt(name, self.addresses[other].model, Snapshot({}, state, {}))

    def close(self) -> None:
        """Remove the folder."""
        self._files.close()
        if self.owner:
            shutil.rmtree(self.folder, ignore_errors=True)

    def adopt(self, name: str, address: Address) -> None:
        """Replace the places of a client; the owner frees those that are no longer in use."""
        old = self.addresses.get(name)
        self.addresses[name] = address
        if self.owner:
            with self._lock:
                self._users.update(address)
            if old is not None:
                self._release(old)

    def freeze(self) -> StoreSnapshot:
        """Return all clients as they are now; their places are not written over until they have been copied."""
        opened = _Opened(self.folder)

        def copy(place: Place, file: BinaryIO) -> int:
            with self._readable():
                record = self._load(place, opened)
            return file.write(record.numpy().data)

        self.part()  # a place may be free as soon as it is copied, whatever this thread is about to do
        with self._lock:
            for address in self.addresses.values():
                self._users.update(address)
        places = {place for address in self.addresses.values() for place in address}
        return StoreSnapshot(self.addresses, copy, self._release, sum(place.length for place in places))

    def part(self) -> None:
        """Let no client share what another one received before."""
        self._received = None

    def lend(self, names: Iterable[str]) -> dict[int, list[Place]]:
        """Take as many free places as another process needs to write the snapshots of clients."""
        lent: dict[int, list[Place]] = {}
        with self._lock:
            for room in (place.room for name in names for place in self.addresses[name]):
                if self.free.get(room):
                    lent.setdefault(room, []).append(self.free[room].pop())
        return lent

    def take_back(self, places: Mapping[int, list[Place]]) -> None:
        """Take back the places that another process has not used."""
        with self._lock:
            for room, free in places.items():
                self.free.setdefault(room, []).extend(free)

    def _release(self, places: tuple[Place, ...]) -> None:
        """Note that some client or copy no longer uses places."""
        with self._lock:
            for place in places:
                self._users[place] -= 1
                if not self._users[place]:
                    del self._users[place]
                    self.free.setdefault(place.room, []).append(place)

    @staticmethod
    def _load(place: Place, files: _Opened) -> Tensor:
        return read_at(files.get(place.file), place.offset, place.length)

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{self.folder}: a client cannot be read ({reason(error)}): go on with --resume"
            ) from None

    def _adopt(self, name: str, model: Place, snapshot: Snapshot) -> None:
        """Write all of a client but its model."""
        rest = snapshot._replace(received={})
        place = self._write(pack(flatten(rest)))
        record = pack(snapshot.received)
        content, last = record.tobytes(), self._received
        if last is None or last[1] != content or (self.owner and last[0] not in self._users):
            last = self._received = self._write(record), content
        self.adopt(name, Address(model, place, last[0]))

    def _write(self, record: memoryview) -> Place:
        place = Place(self._own, self._end, len(record))
        with self._lock:
            if free := self.free.get(place.room):
                place = free.pop()._replace(length=len(record))
            else:
                self._end += place.room
        try:
            with writing(self.folder / place.file):
                write_at(self._files.get(place.file), place.offset, record)
        except OutputError as error:
            raise OutputError(f"{error}; TMPDIR may name another folder") from None
        return place


class Roster(Mapping[str, Member]):
    """All clients by name, in a fixed order.

    Args:
        models: By kind, on the device.
        store: None if each client rests on its own node of a network.
    """

    def __init__(
        self, members: Sequence[Member], models: Mapping[str, SplitModel], store: Store | None = None
    ) -> None:
        self._members = {member.name: member for member in members}
        self._store = store
        self.models = models

    def __getitem__(self, name: str) -> Member:
        return self._members[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    @cached_property
    def union(self) -> Samples:
        """The test samples of all clients together, which are of one type and shape."""
        parts = [member.test for member in self.values() if len(member.test)]
        return Samples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))

    def after(self, name: str) -> Member:
        """Return the next client with training samples; after the last, the first."""
        able = [member for member in self.values() if len(member.train) or member.name == name]
        place = next(i for i, member in enumerate(able, start=1) if member.name == name)
        return able[place % len(able)]

    @property
    def size(self) -> int:
        """Bytes of the weights of all clients."""
        each = {kind: sum(t.nbytes for t in m.state_dict().values()) for kind, m in self.models.items()}
        return sum(each[member.kind] for member in self.values() if member.kind in each)

    @property
    def rests_here(self) -> bool:
        """Return whether the clients rest in a store of this process rather than on nodes of a network."""
        return self._store is not None

    @property
    def store(self) -> Store:
        """Store of the clients' snapshots."""
        assert self._store is not None, "the clients rest on their nodes"
        return self._store

    def snapshot(self, name: str) -> Snapshot:
        """Return the snapshot of a client, whose tensors must not be modified."""
        return self.store.read(name)

    def replace(self, name: str, snapshot: Snapshot) -> None:
        """Replace the snapshot of a client."""
        model = self.models[self[name].kind]
        model.load_state_dict(snapshot.model)
        self.store.write(name, snapshot._replace(model=model.state_dict()))

    def restore(self, name: str, snapshot: Snapshot, path: Path) -> None:
        """Replace the first snapshot of a client by one that was written to a file."""
        try:
            if lacking := self.snapshot(name).state.keys() - snapshot.state.keys():
                raise RuntimeError(f"its state lacks {', '.join(sorted(lacking))}")
            self.replace(name, snapshot)
        except (KeyError, RuntimeError) as error:
            why = str(error).splitlines()[0]
            raise CheckpointError(f"{path}: does not fit the model of {name} ({why})") from None

    def model(self, name: str) -> SplitModel:
        """Return a copy of a client's model, for inspection."""
        return copy.deepcopy(self.working_model(name))

    def working_model(self, name: str, weights: Mapping[str, Tensor] | None = None) -> SplitModel:
        """Load a client's weights into the working model of its kind and return it.

        Returns:
            Valid until the next call for a client of the same kind.
        """
        model = self.models[self[name].kind]
        weights = self.snapshot(name).model if weights is None else weights
        own: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
        own.update(model.named_buffers(remove_duplicate=False))
        if weights.keys() <= own.keys():  # unchecked, and so faster than load_state_dict
            with torch.no_grad():
                torch._foreach_copy_([own[name] for name in weights], list(weights.values()))
        else:  # a model that saves itself under other names
            model.load_state_dict(dict(weights))
        return model

    def compute_in_bfloat16(self, kinds: Collection[str]) -> None:
        """Compute the layers of the models of these kinds, and of no others, in bfloat16."""
        for kind, model in self.models.items():
            model.in_bfloat16 = kind in kinds

    @property
    def in_bfloat16(self) -> list[str]:
        """Kinds of models whose layers are computed in bfloat16."""
        return [kind for kind, model in self.models.items() if model.in_bfloat16]


def _same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Return whether tensors are equal to the bit, and so large that it matters."""
    large = sum(tensor.nbytes for tensor in one.values()) >= WORTH_SHARING
    return large and one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)


def _equal(one: Tensor, other: Tensor) -> bool:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    first, second = (t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy() for t in (one, other))
    return np.array_equal(first, second)


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    copies = {name: torch.empty_like(tensor, device="cpu") for name, tensor in tensors.items()}
    if copies:
        with torch.no_grad():
            torch._foreach_copy_(list(copies.values()), list(tensors.values()))
    return copies


def versions(model: torch.nn.Module) -> int:
    """Return a number that grows with every in-place change to a parameter or buffer."""
    return sum(t._version for t in itertools.chain(model.parameters(), model.buffers()))
