"""A node's memory of one client: files in a folder that belongs to the node.

Flower forgets what a node keeps in its context when the node restarts, so nodes keep it themselves. Every visit
that changes a client makes a new *generation* of it. The node tells the server its name, and the server names, with
each request, the generation that the visit must start from or after. A node that does not hold it refuses: no visit
starts from weights that are not the client's.

A node keeps the generation that the server knows, the one in the server's last checkpoint, and the newest. A server
that lost its last round asks for that round again; if it sends what it sent before, it is given the answer it was
given before, otherwise the client trains once more from where it stood before the round. Either way nothing is
learned twice.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from protofed import claims, limits
from protofed.errors import CheckpointError, writing
from protofed.federation.files import PARTIAL, read_json, read_tensors, write_bytes, write_json, write_tensors
from protofed.flower.messages import GENERATION
from protofed.reading import read_bytes, reason
from protofed.training import Parked
from protofed.training.client import flatten, unflatten

try:
    import fcntl
except ImportError:  # Windows: a node there must not be asked for two visits of one client at a time
    fcntl = None  # type: ignore[assignment]

INDEX = "state.json"
LOCK, TURN = ".lock", ".turn"
LOOK = 0.1
"""Seconds between two looks whether a client's visit is over."""
MODEL = "model.safetensors"
"""The personal model as it is now: another name for the newest generation's file."""


@dataclass(frozen=True)
class Generation:
    """One state of a client on disk.

    Attributes:
        name: Identifies it.
        round: The round of the visit that made it.
        trained: Whether that visit trained the client, or delivered the round's outcome.
        request: Digest of the broadcast it was trained with.
        model: File with the model's weights.
        rest: File with the method's state and what was received last.
        reply: File with the encoded answer, or "" if there was none.
        losses: Of the training, as JSON (they may be NaN).
    """

    name: str
    round: int
    trained: bool
    request: str
    model: str
    rest: str
    reply: str
    losses: str

    @property
    def place(self) -> tuple[int, bool]:
        """Where it comes in the course of a run: a round trains, then delivers."""
        return self.round, not self.trained


def _generation(item: object) -> Generation:
    """Return a generation from plain values.

    Raises:
        ValueError: If something is missing, of another type, or names a file that is not a generation's.
    """
    found = claims.mapping(item, "generation", Generation.__dataclass_fields__)
    claims.whole(found["round"], "round", 0, limits.ROUNDS)
    claims.flag(found["trained"], "trained")
    for key in ("name", "request", "model", "rest", "reply", "losses"):
        if not isinstance(found[key], str):
            raise ValueError(f"{key}: expected text")
    name = found["name"]
    model = found["model"].removesuffix(f".{MODEL}")
    own = found["rest"] == f"{name}.rest.safetensors" and found["reply"] in ("", f"{name}.reply")
    if not own or not GENERATION.fullmatch(name) or not GENERATION.fullmatch(model):
        raise ValueError(f"generation {claims.clean(name, 40)!r}: its files are not its own")
    if not isinstance(json.loads(found["losses"]), dict):
        raise ValueError("losses: expected a table")
    return Generation(**found)


@contextlib.contextmanager
def locked(path: Path, run: str, order: int) -> Iterator[None]:
    """Keep other processes of this node from visiting the client whose folder is ``path`` meanwhile.

    Of several requests only the newest waits for the visit under way, so that a slow node does not fill up with
    processes.

    Args:
        path: The client's folder.
        run: The run of the request.
        order: Its number.

    Raises:
        CheckpointError: If a later request of the run came meanwhile.
    """
    path.mkdir(parents=True, exist_ok=True)
    own = f"{run} {order}"
    with (path / LOCK).open("a") as file:
        if fcntl is not None and not _free(file):
            if _later(_turn(path), run, order):
                raise CheckpointError(f"{path.name}: a later request of the server waits for the visit under way")
            write_bytes(path / TURN, own.encode())
            while not _free(file):
                if _turn(path) != own:
                    raise CheckpointError(f"{path.name}: a later request of the server came before this one's turn")
                time.sleep(LOOK)
        yield


def _free(file: IO[str]) -> bool:
    """Take the lock if nobody has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _turn(path: Path) -> str:
    """Return whose request waits, or was the last to."""
    try:
        return (path / TURN).read_text()[:200]
    except (OSError, ValueError):
        return ""


def _later(turn: str, run: str, order: int) -> bool:
    other, _, number = turn.partition(" ")
    return other == run and number.isdecimal() and int(number) > order


class ClientFolder:
    """One client's files.

    Args:
        path: The folder; made when first written to.
        run: The run; what another run left behind is not continued.

    Attributes:
        chain: The generations held, oldest first; each came of the one before or of one between them.
        order: Number of the newest request that left a generation.
        notes: Plain values kept for this run.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path = path
        self.run = run
        self.chain: list[Generation] = []
        self.order = 0
        self.notes: dict[str, Any] = {}
        index = path / INDEX
        if index.is_file():
            found = read_json(index)
            if isinstance(found, dict) and found.get("run") == run:
                self._load(index, found)

    def _load(self, index: Path, found: dict[str, Any]) -> None:
        try:
            claims.mapping(found, "state", ("run", "order", "chain", "notes"))
            self.chain = [_generation(item) for item in claims.items(found["chain"], "chain", limits.ROUNDS)]
            self.order = claims.whole(found["order"], "order", 0, limits.ORDER)
            notes = found["notes"]
            if not isinstance(notes, dict) or not all(isinstance(kinds, list) for kinds in notes.values()):
                raise ValueError("notes: expected lists by name")
            self.notes = notes
        except ValueError as error:
            raise CheckpointError(
                f"{index}: damaged ({claims.clean(error)}): "
                "restore it, or remove the folder and give the node fresh=true"
            ) from None

    @property
    def latest(self) -> Generation | None:
        """The newest generation; None if the client is as it was before the run."""
        return self.chain[-1] if self.chain else None

    def since(self, after: str) -> list[Generation] | None:
        """Return generation ``after`` and what came of it; None if the node does not hold it.

        Args:
            after: Its name; "" for the client as it was before the run, from which all came.
        """
        if not after:
            return self.chain
        names = [generation.name for generation in self.chain]
        return self.chain[names.index(after) :] if after in names else None

    def read(self, generation: Generation) -> Parked:
        """Return a state.

        Raises:
            CheckpointError: If its files are missing or damaged.
        """
        path = self.path / generation.rest
        try:
            rest = unflatten(read_tensors(path))
        except KeyError as error:
            raise CheckpointError(f"{path}: damaged (it has {error})") from None
        return rest._replace(model=read_tensors(self.path / generation.model))

    def reply(self, generation: Generation) -> bytes | None:
        """Return the encoded answer that came with the generation.

        Raises:
            CheckpointError: If it cannot be read.
        """
        path = self.path / generation.reply
        try:
            return read_bytes(path, limits.RUN_FILE_BYTES) if generation.reply else None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read ({reason(error)})") from None

    def write(
        self,
        parked: Parked,
        round: int,
        request: str = "",
        reply: bytes | None = None,
        losses: str = "{}",
        *,
        same_model: Generation | None = None,
    ) -> Generation:
        """Write the files of a new generation; only :meth:`commit` makes it the client's.

        Args:
            parked: The client after the visit.
            round: The round.
            request: Digest of the broadcast, if the client was trained with it.
            reply: The encoded answer.
            losses: Of the training, as JSON.
            same_model: A generation with the same weights, whose file then serves for both.
        """
        name = f"{round:06d}-{secrets.token_hex(8)}"
        model = same_model.model if same_model else f"{name}.model.safetensors"
        if same_model is None:
            write_tensors(self.path / model, parked.model)
        rest = f"{name}.rest.safetensors"
        write_tensors(self.path / rest, flatten(parked._replace(model={})))
        if reply:
            write_bytes(self.path / f"{name}.reply", reply)
        return Generation(name, round, bool(request), request, model, rest, f"{name}.reply" * bool(reply), losses)

    def commit(self, new: Generation, start: Generation | None, order: int, keep: set[str]) -> None:
        """Make ``new``, which came of ``start``, the client's own: until this moment nothing has changed.

        Args:
            new: The new generation.
            start: The one that the visit started from; None for the client as it was before the run.
            order: Number of the request.
            keep: Names of the generations that the server may still ask for, as far as ``new`` came of them.
        """
        before = self.chain[: self.chain.index(start) + 1] if start else []
        chain = [g for g in before if g.name in keep or g == start] + [new]
        index = {"run": self.run, "order": order, "chain": [asdict(g) for g in chain], "notes": self.notes}
        write_json(self.path / INDEX, index)
        self.chain, self.order = chain, order
        self._show(new.model)
        kept = {INDEX, LOCK, TURN, MODEL} | {file for g in chain for file in (g.model, g.rest, g.reply)}
        with writing(self.path):
            for file in self.path.iterdir():
                if file.name not in kept:
                    file.unlink()

    def _show(self, file: str) -> None:
        """Give the newest model its plain name."""
        name = self.path / f".{MODEL}{PARTIAL}"
        with writing(self.path / MODEL):
            name.unlink(missing_ok=True)
            try:
                os.link(self.path / file, name)
            except OSError:  # a file system without links
                shutil.copyfile(self.path / file, name)
            os.replace(name, self.path / MODEL)


def digest(round: int, message: bytes | None) -> str:
    """Return what identifies the request to train in ``round`` with ``message``."""
    return hashlib.blake2b(message or b"", digest_size=16, key=round.to_bytes(8, "little")).hexdigest()
