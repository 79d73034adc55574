"""Stop and go on: a checkpoint is a folder that is complete or absent, even after ``kill -9``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from protofed.errors import CheckpointError, writing
from protofed.federation.files import PARTIAL, read_json, read_tensors, write_json, write_tensors
from protofed.training import Roster
from protofed.training.client import flatten, unflatten

_PREFIX = "round-"


def save_checkpoint(folder: Path, round: int, server: Mapping[str, Tensor], clients: Roster) -> None:
    """Store the state after ``round`` in ``folder/round-NNNNNN`` and remove older checkpoints.

    Raises:
        OutputError: If the system refuses; the checkpoint before stays valid.
    """
    target = folder / f"{_PREFIX}{round:06d}"
    partial = folder / f".{target.name}{PARTIAL}"
    shutil.rmtree(partial, ignore_errors=True)
    with writing(target):
        try:
            partial.mkdir(parents=True)
            write_tensors(partial / "server.safetensors", server)
            for name in clients.here:
                write_tensors(partial / "clients" / f"{name}.safetensors", flatten(clients.parked(name)))
            state = {"round": round, "clients": list(clients), "generations": clients.generations}
            write_json(partial / "state.json", state)
            os.rename(partial, target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        clients.saved = dict(clients.generations)
        for older in _checkpoints(folder)[:-1]:
            shutil.rmtree(older, ignore_errors=True)


def load_checkpoint(folder: Path, clients: Roster) -> tuple[int, dict[str, Tensor]] | None:
    """Restore the newest checkpoint into ``clients``; return its round and the server's state, or None.

    Raises:
        CheckpointError: If it is damaged or belongs to other clients.
    """
    found = _checkpoints(folder)
    if not found:
        return None
    state = read_json(found[-1] / "state.json")
    if state.get("clients") != list(clients):
        raise CheckpointError(f"{found[-1]}: was written for other clients")
    round = state.get("round")
    if type(round) is not int or found[-1].name != f"{_PREFIX}{round:06d}":
        raise CheckpointError(f"{found[-1] / 'state.json'}: its round is {round!r}, not that of its folder")
    server = read_tensors(found[-1] / "server.safetensors")
    for name in clients.here:
        path = found[-1] / "clients" / f"{name}.safetensors"
        try:
            clients.replace(name, unflatten(read_tensors(path)))
        except (KeyError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise CheckpointError(f"{path}: does not fit the model of {name} ({reason})") from None
    clients.generations = _generations(found[-1], state, clients)
    clients.saved = dict(clients.generations)
    return round, server


def _generations(folder: Path, state: Mapping[str, Any], clients: Roster) -> dict[str, str]:
    """Return which state each client of a network had."""
    found = state.get("generations", None if len(clients.here) < len(clients) else {})
    if not isinstance(found, dict) or not all(
        name in clients.members and isinstance(generation, str) for name, generation in found.items()
    ):
        raise CheckpointError(f"{folder}: does not say which states its clients had")
    return dict(found)


def _checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints there are, the newest last; links are none, since they lead to somebody else's."""
    found = [p for p in folder.glob(f"{_PREFIX}*") if p.name.removeprefix(_PREFIX).isdecimal()]
    return sorted(p for p in found if p.is_dir() and not p.is_symlink())
