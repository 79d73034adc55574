"""All clients of a federation. Their models rest in a store and are loaded onto the device one at a time.

Therefore a federation of a thousand clients needs device memory for one model per architecture, and any process
that can reach the store can run a visit.
"""

from __future__ import annotations

import copy
import itertools
import secrets
import shutil
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from protofed import snapshots
from protofed.errors import CheckpointError, OutputError
from protofed.optimizers import check_kept
from protofed.samples import Samples
from protofed.snapshots import Snapshot
from protofed.training.client import Member

if TYPE_CHECKING:
    from protofed.models import SplitModel


class Store(Protocol):
    """Keeps the snapshots of clients between visits."""

    def read(self, name: str) -> Snapshot:
        """Return the snapshot of a client, whose tensors must not be modified."""
        ...

    def write(self, name: str, snapshot: Snapshot, *, model: bool = True) -> None:
        """Store a copy of a client's snapshot.

        Args:
            name: Name of the client.
            snapshot: Its snapshot.
            model: Whether the model has changed; otherwise the stored one is kept.
        """
        ...

    def share(self, name: str, other: str, state: dict[str, Tensor]) -> None:
        """Store a client that starts from the model of another one, without storing the model again.

        Args:
            name: Name of the new client.
            other: Name of a stored client.
            state: The method's state of the new client.
        """
        ...

    def close(self) -> None:
        """Free all snapshots."""
        ...


class Memory(Store):
    """Store in host memory."""

    def __init__(self) -> None:
        self.snapshots: dict[str, Snapshot] = {}

    def read(self, name: str) -> Snapshot:
        """Return the client's snapshot."""
        return self.snapshots[name]

    def write(self, name: str, snapshot: Snapshot, *, model: bool = True) -> None:
        """Store a copy of a client's snapshot."""
        kept = _on_host(snapshot.model) if model else self.snapshots[name].model
        rest = (_on_host(part) for part in (snapshot.state, snapshot.received, snapshot.optimizer))
        self.snapshots[name] = Snapshot(kept, *rest)

    def share(self, name: str, other: str, state: dict[str, Tensor]) -> None:
        """Store a client that starts from the model of another one."""
        self.snapshots[name] = Snapshot(self.snapshots[other].model, _on_host(state), {})

    def close(self) -> None:
        """Free all snapshots."""
        self.snapshots.clear()


class Address(NamedTuple):
    """Names of a client's files: the model's weights, and the rest of the snapshot."""

    model: str
    rest: str


class Files(Store):
    """Store of safetensors files in a folder that several processes may share.

    Files are never modified: every write creates a new file, so the old one stays valid if the write fails.

    Args:
        folder: Existing folder.
        owner: Whether this process removes files that are no longer needed; exactly one process does.
    """

    def __init__(self, folder: Path, *, owner: bool = True) -> None:
        self.folder = folder
        self.owner = owner
        self.addresses: dict[str, Address] = {}
        self._users: Counter[str] = Counter()
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count()

    def read(self, name: str) -> Snapshot:
        """Return the client's snapshot.

        Raises:
            CheckpointError: If its files cannot be read.
        """
        address = self.addresses[name]
        try:
            return snapshots.read(self.folder / address.rest, self.folder / address.model)
        except CheckpointError as error:
            raise CheckpointError(f"{error}: go on with --resume") from None

    def write(self, name: str, snapshot: Snapshot, *, model: bool = True) -> None:
        """Write the snapshot to new files."""
        self.adopt(name, self._write(snapshot, None if model else self.addresses[name].model))

    def share(self, name: str, other: str, state: dict[str, Tensor]) -> None:
        """Store a client that starts from the model of another one."""
        self.adopt(name, self._write(Snapshot({}, state, {}), self.addresses[other].model))

    def close(self) -> None:
        """Remove the folder."""
        if self.owner:
            shutil.rmtree(self.folder, ignore_errors=True)

    def adopt(self, name: str, address: Address) -> None:
        """Replace the files of a client; the owner removes files that are no longer in use.

        Args:
            name: Name of the client.
            address: Its new files.
        """
        old = self.addresses.get(name)
        self.addresses[name] = address
        if not self.owner:
            return
        self._users.update(address)
        self._users.subtract(old or ())
        for file in old or ():
            if not self._users[file]:
                del self._users[file]
                (self.folder / file).unlink(missing_ok=True)

    def _write(self, snapshot: Snapshot, model: str | None) -> Address:
        number = f"{self._prefix}-{next(self._numbers)}"
        try:
            if model is None:
                model = f"{number}.model"
                snapshots.write_weights(self.folder / model, snapshot.model)
            snapshots.write(self.folder / f"{number}.rest", snapshot._replace(model={}))
        except OutputError as error:
            raise OutputError(f"{error}; TMPDIR may name another folder") from None
        return Address(model, f"{number}.rest")


class Roster(Mapping[str, Member]):
    """All clients by name, in a fixed order.

    Args:
        members: The clients.
        models: One working model per kind, on the device.
        store: Store of their snapshots; None if each client rests on its own node of a network.
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
    def rests_here(self) -> bool:
        """Whether the clients rest in a store of this process rather than on nodes of a network."""
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
        """Replace the snapshot of a client.

        Args:
            name: Name of the client.
            snapshot: Its new snapshot.

        Raises:
            KeyError, RuntimeError: If the snapshot does not fit the model of the client.
        """
        model = self.models[self[name].kind]
        model.load_state_dict(snapshot.model)
        check_kept(snapshot.optimizer, dict(model.named_parameters()))
        self.store.write(name, snapshot._replace(model=model.state_dict()))

    def model(self, name: str) -> SplitModel:
        """Return a copy of a client's model, for inspection."""
        return copy.deepcopy(self.working_model(name))

    def working_model(self, name: str) -> SplitModel:
        """Load a client's weights into the working model of its kind and return it.

        The model is valid until the next call for a client of the same kind.
        """
        model, weights = self.models[self[name].kind], self.snapshot(name).model
        own: dict[str, Tensor] = dict(model.named_parameters(remove_duplicate=False))
        own.update(model.named_buffers(remove_duplicate=False))
        if weights.keys() <= own.keys():  # unchecked, and so faster than load_state_dict
            with torch.no_grad():
                torch._foreach_copy_([own[name] for name in weights], list(weights.values()))
        else:  # a model that saves itself under other names
            model.load_state_dict(weights)
        return model

    def compute_in_bfloat16(self, kinds: Collection[str]) -> None:
        """Compute the layers of the models of these kinds, and of no others, in bfloat16."""
        for kind, model in self.models.items():
            model.in_bfloat16 = kind in kinds

    @property
    def in_bfloat16(self) -> list[str]:
        """Kinds of models whose layers are computed in bfloat16."""
        return [kind for kind, model in self.models.items() if model.in_bfloat16]


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    copies = {name: torch.empty_like(tensor, device="cpu") for name, tensor in tensors.items()}
    if copies:
        with torch.no_grad():
            torch._foreach_copy_(list(copies.values()), list(tensors.values()))
    return copies


def versions(model: torch.nn.Module) -> int:
    """Return a number that grows with every in-place change to a parameter or buffer."""
    return sum(t._version for t in itertools.chain(model.parameters(), model.buffers()))
