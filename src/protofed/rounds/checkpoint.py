"""Checkpoints: folders that are either complete or absent, even after ``kill -9``."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from torch import Tensor

from protofed.errors import CheckpointError, writing
from protofed.rounds.standing import Standing
from protofed.rounds.state import ServerState, read_forgotten, read_generations
from protofed.storage.files import PARTIAL, check_format, read_json, read_tensors, write_json, write_tensors
from protofed.storage.records import Records, read_at
from protofed.storage.snapshots import Snapshot, unflatten
from protofed.untrusted import claims
from protofed.untrusted.reading import open_ordinary, reason
from protofed.visits.roster import Roster, StoreSnapshot

VERSION = 3
"""Number of the format."""
CLIENTS = "clients.records"
"""File with the snapshots of all clients, as :mod:`protofed.storage.records`; ``state.json`` says where each one
lies."""
LARGE = 2**20
"""Bytes of clients from which on they are written while the next round is trained."""
_PREFIX = "round-"


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
        self.record: dict[str, Any] = {
            "version": VERSION,
            "round": state.round,
            "clients": list(clients),
            "refusals": state.standing.to_dict(),
            "generations": self.generations,
            **({"forgotten": state.forgotten} if state.forgotten else {}),
        }
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


def save_checkpoint(folder: Path, state: ServerState, clients: Roster) -> None:
    """Store the state after a round in ``folder/round-NNNNNN`` and remove older checkpoints.

    Args:
        clients: Their snapshots are stored too if they rest in this process.
    """
    checkpoint = Checkpoint(folder, state, clients, _frozen(clients))
    checkpoint.write()
    state.saved = checkpoint.generations


class Saving:
    """Writes checkpoints, large ones beside the training, and waits for the last one when the block ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def save(self, state: ServerState, clients: Roster) -> None:
        """Store the state after a round."""
        self.wait()
        checkpoint = Checkpoint(self.folder, state, clients, _frozen(clients))
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


def _frozen(clients: Roster) -> StoreSnapshot | None:
    return clients.store.freeze() if clients.rests_here else None


def load_checkpoint(folder: Path, state: ServerState, clients: Roster) -> bool:
    """Restore the newest checkpoint, if there is one, and return whether there was.

    Raises:
        CheckpointError: If the checkpoint is damaged, in another format, or belongs to other clients.
    """
    newest = newest_checkpoint(folder)
    if newest is None:
        return False
    record = read_json(newest / "state.json")
    check_format(newest, record.get("version", 1), VERSION)
    if record.get("clients") != list(clients):
        raise CheckpointError(f"{newest}: was written for other clients")
    round = record.get("round")
    if type(round) is not int or newest.name != f"{_PREFIX}{round:06d}":
        raise CheckpointError(f"{newest / 'state.json'}: its round is {round!r}, not that of its folder")
    try:
        standing = Standing.of(record.get("refusals"), clients)
        generations = read_generations(record.get("generations"), clients)
        forgotten = read_forgotten(record.get("forgotten", {}))
    except ValueError as error:
        raise CheckpointError(f"{newest / 'state.json'}: damaged ({claims.clean(error)})") from None
    if clients.rests_here and generations:
        raise CheckpointError(f"{newest}: its clients are at the nodes of a network: continue it with flwr run")
    tensors = read_tensors(newest / "server.safetensors")
    if clients.rests_here and (round or "records" in record):
        _restore(newest / CLIENTS, record.get("records"), clients)
    state.round, state.tensors, state.standing = round, tensors, standing
    state.generations, state.saved, state.forgotten = generations, dict(generations), forgotten
    return True


def read_rest(folder: Path, client: str) -> dict[str, Tensor]:
    """Return all that a checkpoint holds of a client except its model, which is not read; empty without the client.

    Raises:
        FileNotFoundError: If the checkpoint has given way to the next one.
    """
    if not folder.is_dir():
        raise FileNotFoundError(folder)
    places = read_json(folder / "state.json").get("records")
    if not isinstance(places, dict) or client not in places:
        return {}
    path = folder / CLIENTS
    try:
        with open_ordinary(path) as file:
            _, place = claims.items(places[client], "place", 2)
            return _record(file, os.fstat(file.fileno()).st_size, place, Records())
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({reason(error)})") from None


def _restore(path: Path, places: object, clients: Roster) -> None:
    """Give all clients the snapshots in the file of a checkpoint."""
    if not isinstance(places, dict) or places.keys() != set(clients):
        raise CheckpointError(f"{path.parent / 'state.json'}: damaged (it does not say where each client is)")
    records = Records()
    try:
        with open_ordinary(path) as file:
            size = os.fstat(file.fileno()).st_size
            for name in clients:
                try:
                    snapshot = _client(file, size, places[name], records)
                except (ValueError, KeyError) as error:
                    raise CheckpointError(f"{path}: {name} cannot be read ({claims.clean(error)})") from None
                try:
                    clients.restore(name, snapshot)
                except (KeyError, RuntimeError) as error:
                    why = str(error).splitlines()[0]
                    raise CheckpointError(f"{path}: does not fit the model of {name} ({why})") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({reason(error)})") from None


def _client(file: BinaryIO, size: int, places: object, records: Records) -> Snapshot:
    """Return a client."""
    model, rest = (_record(file, size, place, records) for place in claims.items(places, "places", 2))
    return unflatten(rest)._replace(model=model)


def _record(file: BinaryIO, size: int, place: object, records: Records) -> dict[str, Tensor]:
    """Return the tensors of a record of a file of ``size`` bytes."""
    offset, length = claims.items(place, "place", 2)
    first = claims.whole(offset, "position", 0, size)
    return records.unpack(read_at(file, first, claims.whole(length, "length", 8, size - first)))


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the newest checkpoint, or None."""
    return next(reversed(_checkpoints(folder)), None)


def _checkpoints(folder: Path) -> list[Path]:
    """Return all checkpoints, the newest last; symbolic links are ignored."""
    found = [p for p in folder.glob(f"{_PREFIX}*") if p.name.removeprefix(_PREFIX).isdecimal()]
    return sorted(p for p in found if p.is_dir() and not p.is_symlink())
