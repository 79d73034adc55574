"""Checkpoints: folders that are either complete or absent, even after ``kill -9``."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, BinaryIO

from msgspec import Meta, field
from torch import Tensor

from protofed.errors import CheckpointError, writing
from protofed.rounds.state import ServerState, StoredState, fitting
from protofed.storage.files import PARTIAL, read_tensors, write_json
from protofed.storage.records import read_at, unpack
from protofed.storage.snapshots import join_snapshot, write_tensors
from protofed.untrusted import claims
from protofed.untrusted.decoding import within
from protofed.untrusted.reading import open_ordinary, reason
from protofed.visits.roster import Roster, StoreSnapshot

VERSION = 3  #: Number of the format
CLIENTS = "clients.records"
"""File with the snapshots of all clients, as :mod:`protofed.storage.records`; ``state.json`` says where each one
lies."""
LARGE = 2**20  #: Bytes of clients from which on they are written while the next round is trained
_PREFIX = "round-"


_Place = tuple[Annotated[int, within(least=0)], Annotated[int, within(least=8)]]
"""Position and length of a record."""


_Places = Annotated[list[_Place], Meta(min_length=2, max_length=3)]
"""Of a client's model, the rest of its snapshot and, since 0.3, what it received."""


class _Stored(StoredState):
    records: dict[str, _Places] = field(default_factory=dict)


class Checkpoint:
    """The state after a round, held until it is written, whatever is trained meanwhile.

    Args:
        frozen: Their snapshots; None if they rest elsewhere, or are as they were before the first round.
    """

    def __init__(
        self, folder: Path, state: ServerState, clients: Iterable[str], frozen: StoreSnapshot | None = None
    ) -> None:
        self.folder = folder
        self.tensors = {name: tensor.detach().cpu().clone() for name, tensor in state.tensors.items()}
        self.generations = dict(state.generations)
        self.record = {"version": VERSION, **state.to_dict(clients)}
        self.frozen = frozen

    @property
    def size(self) -> int:
        """Number of bytes of the clients."""
        return self.frozen.size if self.frozen else 0

    def write(self) -> None:
        """Write ``folder/round-NNNNNN``, then remove older checkpoints."""
        target = self.folder / f"{_PREFIX}{self.record['round']:06d}"
        partial = self.folder / f".{target.name}{PARTIAL}"
        shutil.rmtree(partial, ignore_errors=True)
        with writing(target):
            try:
                partial.mkdir(parents=True)
                write_tensors(partial / "server.safetensors", self.tensors)
                if self.frozen:
                    with (partial / CLIENTS).open("wb") as file:
                        self.record["records"] = self.frozen.write(file)
                write_json(partial / "state.json", self.record)
                os.rename(partial, target)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            for older in _checkpoints(self.folder)[:-1]:
                shutil.rmtree(older, ignore_errors=True)


class Saving:
    """Writes checkpoints, large ones beside the training, and waits for the last one when the block ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, state: ServerState, clients: Roster) -> None:
        """Store the state after a round in ``folder/round-NNNNNN`` and remove older checkpoints."""
        self.wait()
        checkpoint = Checkpoint(self.folder, state, clients, clients.store.freeze() if clients.rests_here else None)
        if checkpoint.size < LARGE:
            checkpoint.write()
            state.saved = checkpoint.generations
        else:  # of clients that rest here, so that no node asks for generations
            self._thread = threading.Thread(target=self._write, args=(checkpoint,), name="checkpoint")
            self._thread.start()

    def wait(self) -> None:
        """Wait until the last checkpoint has been written."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _write(self, checkpoint: Checkpoint) -> None:
        try:
            checkpoint.write()
        except BaseException as error:
            self._error = error

    def __enter__(self) -> Saving:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            self.wait()
        except Exception:
            if kind is None:  # otherwise the first error is the one to report
                raise


def load_checkpoint(folder: Path, state: ServerState, clients: Roster) -> bool:
    """Replace ``state`` by that of the newest checkpoint, if there is one; return whether there was."""
    newest = newest_checkpoint(folder)
    if newest is None:
        return False
    path = newest / "state.json"
    stored = _Stored.read(path, VERSION)
    restored = stored.of(clients, path)
    if newest.name != f"{_PREFIX}{stored.round:06d}":
        raise CheckpointError(f"{path}: its round is {stored.round}, not that of its folder")
    server = newest / "server.safetensors"
    restored.tensors = fitting(read_tensors(server), state.tensors, server)
    if clients.rests_here and (stored.round or stored.records):
        if stored.records.keys() != set(clients):
            raise CheckpointError(f"{path}: damaged: does not say where each client is")
        _restore(newest / CLIENTS, stored.records, clients)
    vars(state).update(vars(restored))
    return True


def _restore(path: Path, places: Mapping[str, _Places], clients: Roster) -> None:
    try:
        with open_ordinary(path) as file:
            for name in clients:
                try:
                    snapshot = join_snapshot(*(_record(file, place) for place in places[name]))
                except (ValueError, KeyError) as error:
                    raise CheckpointError(f"{path}: {name} cannot be read ({claims.clean(error)})") from None
                clients.restore(name, snapshot, path)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({reason(error)})") from None


def _record(file: BinaryIO, place: _Place) -> dict[str, Tensor]:
    """Return the tensors of a record; raise ValueError if it is damaged or cut off."""
    if sum(place) > os.fstat(file.fileno()).st_size:
        raise ValueError(f"position {place[0]} and length {place[1]} are beyond the end of the file")
    return unpack(read_at(file, *place))


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint, or None."""
    return next(reversed(_checkpoints(folder)), None)


def _checkpoints(folder: Path) -> list[Path]:
    found = [p for p in folder.glob(f"{_PREFIX}*") if p.name.removeprefix(_PREFIX).isdecimal()]
    return sorted(p for p in found if p.is_dir() and not p.is_symlink())
