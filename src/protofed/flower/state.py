"""A node's memory of one client: files in a folder that belongs to the node.

Flower forgets what a node keeps in its context when the node restarts, so nodes keep it themselves. Two generations
are kept: after the last round a client trained in, and before it. A server that lost its last round asks for that
round again; if it sends what it sent before, it is given the answer it was given before, otherwise the client
trains once more from where it stood before the round. Either way nothing is learned twice.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from protofed.errors import CheckpointError
from protofed.federation.files import read_json, read_tensors, write_json, write_tensors
from protofed.training import Parked

INDEX = "state.json"
MODEL = "model.safetensors"
"""The personal model as it is now: another name for the newest generation's file."""


@dataclass(frozen=True)
class Generation:
    """One state of a client on disk.

    Attributes:
        round: The last round it trained in; 0 before the first.
        request: Digest of the broadcast of that round.
        model: File with the model's weights.
        rest: File with the method's state and what was received last.
        reply: File with the encoded answer of that round, or "" if there was none.
        losses: Of that round, as JSON (they may be NaN).
    """

    round: int
    request: str
    model: str
    rest: str
    reply: str
    losses: str


class ClientFolder:
    """One client's files.

    Args:
        path: The folder; made when first written to.
        run: The run; what another run left behind is not continued.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path = path
        self.run = run
        self.latest: Generation | None = None
        self.before: Generation | None = None
        self.notes: dict[str, Any] = {}
        index = path / INDEX
        if index.is_file():
            found = read_json(index)
            if found.get("run") == run:
                self.latest, self.before = (_generation(index, found.get(key)) for key in ("latest", "before"))
                self.notes = found.get("notes", {})

    def read(self, generation: Generation) -> Parked:
        """Return a state."""
        parts: dict[str, dict[str, Tensor]] = {"state": {}, "received": {}}
        for key, tensor in read_tensors(self.path / generation.rest).items():
            part, _, name = key.partition(".")
            parts[part][name] = tensor
        return Parked(read_tensors(self.path / generation.model), **parts)

    def reply(self, generation: Generation) -> bytes | None:
        """Return the encoded answer of the generation's round."""
        return (self.path / generation.reply).read_bytes() if generation.reply else None

    def trained(
        self, parked: Parked, round: int, request: str, reply: bytes | None, losses: str, start: Parked
    ) -> None:
        """Keep what a round made of a client that stood at ``start`` before it."""
        latest = self._write(parked, round, request, reply, losses)
        before = self.latest
        if before is None:
            before = self._write(start, 0, "", None, "{}")
        elif before.round == round:  # trained once more, from where it stood before
            before = self.before
        self._commit(latest, before)

    def delivered(self, parked: Parked) -> None:
        """Keep what a client received since its last round; its model too, if the method changed it."""
        latest = self.latest
        old = (latest.round, latest.request, latest.losses) if latest else (0, "", "{}")
        reply = self.reply(latest) if latest else None
        self._commit(self._write(parked, old[0], old[1], reply, old[2]), self.before)

    def note(self, name: str, value: Any) -> None:
        """Keep a plain value for this run."""
        self.notes[name] = value

    def _write(self, parked: Parked, round: int, request: str, reply: bytes | None, losses: str) -> Generation:
        stem = f"{round:06d}-{secrets.token_hex(4)}"
        names = f"{stem}.model.safetensors", f"{stem}.rest.safetensors", f"{stem}.reply" if reply else ""
        write_tensors(self.path / names[0], parked.model)
        rest = {f"state.{n}": t for n, t in parked.state.items()}
        write_tensors(self.path / names[1], rest | {f"received.{n}": t for n, t in parked.received.items()})
        if reply:
            (self.path / names[2]).write_bytes(reply)
        return Generation(round, request, *names, losses)

    def _commit(self, latest: Generation, before: Generation | None) -> None:
        """Make ``latest`` and ``before`` the client's own: until this moment nothing has changed."""
        found = {"run": self.run, "latest": asdict(latest), "before": asdict(before) if before else None}
        write_json(self.path / INDEX, {**found, "notes": self.notes})
        self.latest, self.before = latest, before
        self._show(latest.model)
        kept = {INDEX, MODEL} | {getattr(g, n) for g in (latest, before) if g for n in ("model", "rest", "reply")}
        for file in self.path.iterdir():
            if file.name not in kept:
                file.unlink()

    def _show(self, file: str) -> None:
        """Give the newest model its plain name."""
        name = self.path / f".{MODEL}"
        name.unlink(missing_ok=True)
        try:
            os.link(self.path / file, name)
        except OSError:  # a file system without links
            shutil.copyfile(self.path / file, name)
        os.replace(name, self.path / MODEL)


def digest(round: int, message: bytes | None) -> str:
    """Return what identifies the request to train in ``round`` with ``message``."""
    return hashlib.blake2b(message or b"", digest_size=16, key=round.to_bytes(8, "little")).hexdigest()


def _generation(index: Path, found: dict[str, Any] | None) -> Generation | None:
    try:
        return None if found is None else Generation(**found)
    except TypeError as error:
        raise CheckpointError(f"{index}: damaged ({error}): remove the folder to begin anew") from None
