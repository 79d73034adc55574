"""Checkpoints: folders that are either complete or absent, even after ``kill -9``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protofed import claims, snapshots
from protofed.errors import CheckpointError, writing
from protofed.federation.standing import Standing
from protofed.federation.state import ServerState
from protofed.files import PARTIAL, check_format, read_json, read_tensors, write_json, write_tensors
from protofed.training import Roster

VERSION = 2
"""Number of the format."""
_PREFIX = "round-"


def save_checkpoint(folder: Path, state: ServerState, clients: Roster) -> None:
    """Store the state after a round in ``folder/round-NNNNNN`` and remove older checkpoints.

    Args:
        folder: Folder of all checkpoints.
        state: State of the server.
        clients: All clients; their snapshots are stored too if they rest in this process.

    Raises:
        OutputError: If the checkpoint cannot be written; the previous one stays valid.
    """
    target = folder / f"{_PREFIX}{state.round:06d}"
    partial = folder / f".{target.name}{PARTIAL}"
    shutil.rmtree(partial, ignore_errors=True)
    with writing(target):
        try:
            (partial / "clients").mkdir(parents=True)
            write_tensors(partial / "server.safetensors", state.tensors)
            for name in clients if clients.rests_here else ():
                snapshots.write(_client_file(partial, name), clients.snapshot(name))
            record = {
                "version": VERSION,
                "round": state.round,
                "clients": list(clients),
                "refusals": state.standing.to_dict(),
                "generations": state.generations,
            }
            write_json(partial / "state.json", record)
            os.rename(partial, target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        state.saved = dict(state.generations)
        for older in _checkpoints(folder)[:-1]:
            shutil.rmtree(older, ignore_errors=True)


def load_checkpoint(folder: Path, state: ServerState, clients: Roster) -> bool:
    """Restore the newest checkpoint.

    Args:
        folder: Folder of all checkpoints.
        state: Receives the state of the server.
        clients: All clients; they receive their snapshots if they rest in this process.

    Returns:
        Whether there was a checkpoint.

    Raises:
        CheckpointError: If the checkpoint is damaged, in another format, or belongs to other clients.
    """
    found = _checkpoints(folder)
    if not found:
        return False
    newest = found[-1]
    record = read_json(newest / "state.json")
    check_format(newest, record.get("version", 1), VERSION)
    if record.get("clients") != list(clients):
        raise CheckpointError(f"{newest}: was written for other clients")
    round = record.get("round")
    if type(round) is not int or newest.name != f"{_PREFIX}{round:06d}":
        raise CheckpointError(f"{newest / 'state.json'}: its round is {round!r}, not that of its folder")
    try:
        standing = Standing.of(record.get("refusals"), clients)
    except ValueError as error:
        raise CheckpointError(f"{newest / 'state.json'}: damaged ({claims.clean(error)})") from None
    generations = _generations(newest, record, clients)
    tensors = read_tensors(newest / "server.safetensors")
    for name in clients if clients.rests_here else ():
        path = _client_file(newest, name)
        try:
            clients.replace(name, snapshots.read(path))
        except (KeyError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise CheckpointError(f"{path}: does not fit the model of {name} ({reason})") from None
    state.round, state.tensors, state.standing = round, tensors, standing
    state.generations, state.saved = generations, dict(generations)
    return True


def _client_file(checkpoint: Path, name: str) -> Path:
    return checkpoint / "clients" / f"{name}.safetensors"


def _generations(folder: Path, record: Mapping[str, Any], clients: Roster) -> dict[str, str]:
    """Return the name of the state that each client on a node had."""
    found = record.get("generations")
    if not isinstance(found, dict) or not all(
        name in clients and isinstance(generation, str) for name, generation in found.items()
    ):
        raise CheckpointError(f"{folder}: does not say which states its clients had")
    return dict(found)


def _checkpoints(folder: Path) -> list[Path]:
    """Return all checkpoints, the newest last; symbolic links are ignored."""
    found = [p for p in folder.glob(f"{_PREFIX}*") if p.name.removeprefix(_PREFIX).isdecimal()]
    return sorted(p for p in found if p.is_dir() and not p.is_symlink())
