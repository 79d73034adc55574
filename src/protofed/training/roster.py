"""All clients of a federation. Their models rest in a store and visit the device one at a time.

A federation of a thousand clients so needs the memory of one model per architecture, and any process that can reach
the store can take a client through its round.
"""

from __future__ import annotations

import copy
import itertools
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from protofed.errors import CheckpointError, OutputError
from protofed.training.client import Client, Member, Parked, contiguous, flatten, unflatten

if TYPE_CHECKING:
    from protofed.models import SplitModel


class Store(Protocol):
    """Where clients rest between visits."""

    def read(self, name: str) -> Parked:
        """Return what ``name`` left behind; the caller does not change its tensors."""
        ...

    def write(self, name: str, parked: Parked, *, model: bool = True) -> None:
        """Keep copies of ``parked``; with ``model=False`` its model is the one already kept."""
        ...

    def share(self, name: str, other: str, state: dict[str, Tensor]) -> None:
        """Let ``name`` begin with the model of ``other``, which takes room once, and with ``state``."""
        ...

    def close(self) -> None:
        """Free what is kept."""
        ...


class Memory:
    """A store in the host's memory."""

    def __init__(self) -> None:
        self.parked: dict[str, Parked] = {}

    def read(self, name: str) -> Parked:
        """Return what ``name`` left behind."""
        return self.parked[name]

    def write(self, name: str, parked: Parked, *, model: bool = True) -> None:
        """Keep copies."""
        kept = _on_host(parked.model) if model else self.parked[name].model
        self.parked[name] = Parked(kept, _on_host(parked.state), _on_host(parked.received))

    def share(self, name: str, other: str, state: dict[str, Tensor]) -> None:
        """Let ``name`` begin with the model of ``other``."""
        self.parked[name] = Parked(self.parked[other].model, _on_host(state), {})

    def close(self) -> None:
        """Forget all clients."""
        self.parked.clear()


class Address(NamedTuple):
    """Where a client's files are: its model, and what its method keeps."""

    model: str
    rest: str


class Files:
    """A store of safetensors files in a folder, which several processes may share.

    A file is never changed: every write makes a new one, so that whoever fails on the way leaves the old one valid.

    Args:
        folder: An existing folder.
        owner: Whether to remove files that are no longer needed. Of several processes one is the owner.
    """

    def __init__(self, folder: Path, *, owner: bool = True) -> None:
        self.folder = folder
        self.owner = owner
        self.addresses: dict[str, Address] = {}
        self._users: Counter[str] = Counter()
        self._prefix = secrets.token_hex(4)
        self._numbers = itertools.count()

    def read(self, name: str) -> Parked:
        """Return what ``name`` left behind."""
        address = self.addresses[name]
        rest = unflatten(self._load(address.rest))
        return rest._replace(model=self._load(address.model))

    def write(self, name: str, parked: Parked, *, model: bool = True) -> None:
        """Write new files."""
        self.adopt(name, self._write(parked, None if model else self.addresses[name].model))

    def share(self, name: str, other: str, state: dict[str, Tensor]) -> None:
        """Let ``name`` begin with the model of ``other``."""
        self.adopt(name, self._write(Parked({}, state, {}), self.addresses[other].model))

    def close(self) -> None:
        """Remove the folder."""
        if self.owner:
            shutil.rmtree(self.folder, ignore_errors=True)

    def adopt(self, name: str, address: Address) -> None:
        """Take ``address`` for the client's files from now on; files that nobody needs any more are removed."""
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

    def _write(self, parked: Parked, model: str | None) -> Address:
        number = f"{self._prefix}-{next(self._numbers)}"
        if model is None:
            model = f"{number}.model"
            self._save(parked.model, model)
        self._save(flatten(parked._replace(model={})), f"{number}.rest")
        return Address(model, f"{number}.rest")

    def _load(self, file: str) -> dict[str, Tensor]:
        try:
            return load_file(self.folder / file)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(
                f"{self.folder / file}: a client's file cannot be read ({error}): go on with --resume"
            ) from None

    def _save(self, tensors: Mapping[str, Tensor], file: str) -> None:
        path = self.folder / file
        try:
            save_file(contiguous(tensors), path)
        except (OSError, SafetensorError) as error:
            path.unlink(missing_ok=True)
            raise OutputError(
                f"{path}: cannot be written ({error}): make room or set TMPDIR, then go on with --resume"
            ) from None


class Roster(Mapping[str, Client]):
    """The clients by name, in their fixed order.

    Looking one up returns a client with a model of its own, for inspection: what is done to it does not last.
    :meth:`fetch` and the store are for work that lasts.

    Args:
        members: The clients.
        models: One working model per kind, on the device.
        store: Where clients rest.

    Attributes:
        here: Names of the clients whose state is here; clients of a network keep theirs themselves.
        away: Whether a visit may fail because of a network.
        generations: Of clients of a network, which state their node has confirmed last.
        saved: ``generations`` as the last checkpoint has them: what the server may go back to.
    """

    def __init__(self, members: Sequence[Member], models: Mapping[str, SplitModel], store: Store) -> None:
        self.members = {member.name: member for member in members}
        self.models = models
        self.store = store
        self.here = list(self.members)
        self.away = False
        self.generations: dict[str, str] = {}
        self.saved: dict[str, str] = {}

    def __getitem__(self, name: str) -> Client:
        client = Client(self.members[name], copy.deepcopy(self.models[self.members[name].kind]))
        client.load(self.parked(name))
        return client

    def __iter__(self) -> Iterator[str]:
        return iter(self.members)

    def __len__(self) -> int:
        return len(self.members)

    def parked(self, name: str) -> Parked:
        """Return what the client left behind, not to be changed."""
        return self.store.read(name)

    def replace(self, name: str, parked: Parked) -> None:
        """Set what the client has.

        Raises:
            KeyError, RuntimeError: If it does not fit the client's model.
        """
        client = self[name]
        client.load(parked)
        self.store.write(name, client.park())

    def fetch(self, name: str) -> Client:
        """Return a client on the device: the working model of its kind with its weights, and copies of the rest.

        It is valid until another client of its kind is fetched; the store keeps what it has until it is written to.
        """
        member = self.members[name]
        client = Client(member, self.models[member.kind])
        client.resume(self.parked(name))
        return client


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    copies = {name: torch.empty_like(tensor, device="cpu") for name, tensor in tensors.items()}
    if copies:
        with torch.no_grad():
            torch._foreach_copy_(list(copies.values()), list(tensors.values()))
    return copies


def versions(model: torch.nn.Module) -> int:
    """Return a number that grows with every change in place to a parameter or buffer."""
    return sum(t._version for t in itertools.chain(model.parameters(), model.buffers()))
