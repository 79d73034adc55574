"""Storage of a client at its node: files in a folder that belongs to the node.

Flower discards a node's context when the node restarts, so nodes store their clients themselves. Every visit that
changes a client creates a new *generation* of it. The node reports its name to the server, and each request of the
server names the generation from which, or from a descendant of which, the visit must start. A node that does not
have it refuses, so no visit starts from weights that are not the client's.

A node keeps the generation that the server knows, the one in the server's last checkpoint, and the newest. A server
that lost its last round requests that round again. If the request is the same as before, the node repeats its
answer; otherwise the client trains again from its state before the round. Either way, no round is learned twice.
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
from typing import Any

from protofed import claims, limits, snapshots
from protofed.errors import CheckpointError, writing
from protofed.files import PARTIAL, check_format, lock, read_json, write_bytes, write_json
from protofed.flower.messages import GENERATION
from protofed.reading import read_bytes, reason
from protofed.snapshots import Snapshot

VERSION = 2
"""Format version of the index."""
INDEX = "state.json"
LOCK, TURN = ".lock", ".turn"
REVEALED = "revealed.json"
"""The last round of each run in which the client helped to read a sum with its upload."""
LOOK = 0.1
"""Seconds between two attempts to take a client's lock."""
MODEL = "model.safetensors"
"""The client's current model: another name for the newest generation's file."""


@dataclass(frozen=True)
class Generation:
    """One state of a client on disk.

    Attributes:
        name: Identifier of the generation.
        round: Round of the visit that created it.
        trained: Whether that visit trained the client; otherwise it delivered the round's outcome.
        request: Digest of the broadcast with which the client was trained.
        model: Name of the file with the model's weights.
        rest: Name of the file with the method's state and the last broadcast received.
        reply: Name of the file with the encoded answer, or "" if there was none.
        losses: Losses of the training, as JSON (they may be NaN).
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
        """Position in the course of a run: a round first trains, then delivers."""
        return self.round, not self.trained


def _generation(item: object) -> Generation:
    """Return a generation from plain values.

    Raises:
        ValueError: If a value is missing, of another type, or names a file that does not belong to the generation.
    """
    fields = claims.mapping(item, "generation", Generation.__dataclass_fields__)
    claims.whole(fields["round"], "round", 0, limits.ROUNDS)
    claims.flag(fields["trained"], "trained")
    for key in ("name", "request", "model", "rest", "reply", "losses"):
        if not isinstance(fields[key], str):
            raise ValueError(f"{key}: expected text")
    name = fields["name"]
    model = fields["model"].removesuffix(f".{MODEL}")
    belong = fields["rest"] == f"{name}.rest.safetensors" and fields["reply"] in ("", f"{name}.reply")
    if not belong or not GENERATION.fullmatch(name) or not GENERATION.fullmatch(model):
        raise ValueError(f"generation {claims.clean(name, 40)!r}: names files that do not belong to it")
    if not isinstance(json.loads(fields["losses"]), dict):
        raise ValueError("losses: expected a table")
    return Generation(**fields)


@contextlib.contextmanager
def locked(path: Path, run: str, order: int) -> Iterator[None]:
    """Lock a client's folder against visits by other processes of this node.

    Of several requests, only the newest waits for the visit in progress, so that processes do not accumulate on a
    slow node.

    Args:
        path: The client's folder.
        run: Identifier of the run.
        order: Number of the request.

    Raises:
        CheckpointError: If a later request of the run arrived in the meantime.
    """
    path.mkdir(parents=True, exist_ok=True)
    turn = f"{run} {order}"
    with (path / LOCK).open("a") as file:
        if not lock(file):
            if _later(_turn(path), run, order):
                raise CheckpointError(f"{path.name}: a later request of the server waits for the visit in progress")
            write_bytes(path / TURN, turn.encode())
            while not lock(file):
                if _turn(path) != turn:
                    raise CheckpointError(f"{path.name}: a later request of the server replaced this one")
                time.sleep(LOOK)
        yield


def _turn(path: Path) -> str:
    """Return run and number of the request that waits or was the last to wait, or "" if there is none."""
    try:
        return (path / TURN).read_text()[:200]
    except (OSError, ValueError):
        return ""


def _later(turn: str, run: str, order: int) -> bool:
    other, _, number = turn.partition(" ")
    return other == run and number.isdecimal() and int(number) > order


class ClientFolder:
    """The files of one client.

    Args:
        path: The folder, which is created when first written to.
        run: Identifier of the run; the state of another run is ignored.

    Attributes:
        chain: The stored generations, oldest first; each is a descendant of the one before.
        order: Number of the newest request that created a generation.
        notes: Plain values stored for this run, by name.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path = path
        self.run = run
        self.chain: list[Generation] = []
        self.order = 0
        self.notes: dict[str, Any] = {}
        index = path / INDEX
        if index.is_file():
            content = read_json(index)
            if isinstance(content, dict) and content.get("run") == run:
                self._load(index, content)

    def _load(self, index: Path, content: dict[str, Any]) -> None:
        check_format(index, content.get("version", 1), VERSION)
        try:
            claims.mapping(content, "state", ("version", "run", "order", "chain", "notes"))
            self.chain = [_generation(item) for item in claims.items(content["chain"], "chain", limits.ROUNDS)]
            self.order = claims.whole(content["order"], "order", 0, limits.ORDER)
            notes = content["notes"]
            if not isinstance(notes, dict) or not all(isinstance(kinds, list) for kinds in notes.values()):
                raise ValueError("notes: expected lists by name")
            self.notes = notes
        except ValueError as error:
            raise CheckpointError(
                f"{index}: damaged ({claims.clean(error)}): "
                "restore it, or remove the folder and add fresh=true to --node-config"
            ) from None

    @property
    def latest(self) -> Generation | None:
        """The newest generation; None if the client is as it was before the run."""
        return self.chain[-1] if self.chain else None

    def since(self, after: str) -> list[Generation] | None:
        """Return a generation and its descendants, oldest first; None if the node does not have it.

        Args:
            after: Name of the generation; "" for the client as it was before the run, which returns all.
        """
        if not after:
            return self.chain
        names = [generation.name for generation in self.chain]
        return self.chain[names.index(after) :] if after in names else None

    def read(self, generation: Generation) -> Snapshot:
        """Return the client's state in a generation.

        Raises:
            CheckpointError: If its files are missing or damaged.
        """
        return snapshots.read(self.path / generation.rest, self.path / generation.model)

    def reply(self, generation: Generation) -> bytes | None:
        """Return the encoded answer of the visit that created a generation, or None if there was none.

        Raises:
            CheckpointError: If the file cannot be read.
        """
        path = self.path / generation.reply
        try:
            return read_bytes(path, limits.RUN_FILE_BYTES) if generation.reply else None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read ({reason(error)})") from None

    def write(
        self,
        snapshot: Snapshot,
        round: int,
        request: str = "",
        reply: bytes | None = None,
        losses: str = "{}",
        *,
        same_model: Generation | None = None,
    ) -> Generation:
        """Write the files of a new generation, which becomes the client's state with :meth:`commit`.

        Args:
            snapshot: The client after the visit.
            round: Number of the round.
            request: Digest of the broadcast if the visit trained the client, else "".
            reply: The encoded answer, or None.
            losses: Losses of the training, as JSON.
            same_model: A generation with the same weights, whose file is then shared.

        Raises:
            OutputError: If a file cannot be written.
        """
        name = f"{round:06d}-{secrets.token_hex(8)}"
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        model = same_model.model if same_model else f"{name}.model.safetensors"
        if same_model is None:
            snapshots.write_weights(self.path / model, snapshot.model)
        rest = f"{name}.rest.safetensors"
        snapshots.write(self.path / rest, snapshot._replace(model={}))
        if reply:
            write_bytes(self.path / f"{name}.reply", reply)
        return Generation(name, round, bool(request), request, model, rest, f"{name}.reply" * bool(reply), losses)

    def commit(self, new: Generation, start: Generation | None, order: int, keep: set[str]) -> None:
        """Make a new generation the client's state, which is unchanged until then.

        Args:
            new: The new generation.
            start: The generation from which the visit started; None for the client as it was before the run.
            order: Number of the request.
            keep: Names of the generations to which the server may still return; those that are ancestors of
                ``new`` are kept.

        Raises:
            OutputError: If a file cannot be written.
        """
        before = self.chain[: self.chain.index(start) + 1] if start else []
        chain = [g for g in before if g.name in keep or g == start] + [new]
        index = {
            "version": VERSION,
            "run": self.run,
            "order": order,
            "chain": [asdict(g) for g in chain],
            "notes": self.notes,
        }
        write_json(self.path / INDEX, index)
        self.chain, self.order = chain, order
        self._show(new.model)
        kept = {INDEX, LOCK, TURN, REVEALED, MODEL} | {file for g in chain for file in (g.model, g.rest, g.reply)}
        with writing(self.path):
            for file in self.path.iterdir():
                if file.name not in kept:
                    file.unlink()

    def _show(self, file: str) -> None:
        """Link the newest model to its plain name."""
        name = self.path / f".{MODEL}{PARTIAL}"
        with writing(self.path / MODEL):
            name.unlink(missing_ok=True)
            try:
                os.link(self.path / file, name)
            except OSError:  # a file system without links
                shutil.copyfile(self.path / file, name)
            os.replace(name, self.path / MODEL)


def revealed(path: Path) -> dict[str, int]:
    """Return the last round, by run, in which a client helped to read a sum with its upload.

    Args:
        path: The client's folder.

    Raises:
        CheckpointError: If the record is damaged: nobody knows then which uploads must not be offered again.
    """
    file = path / REVEALED
    if not file.exists():
        return {}
    found = read_json(file)
    try:
        return {run: claims.whole(round, "round", 1, limits.ROUNDS) for run, round in found.items()}
    except ValueError as error:
        raise CheckpointError(
            f"{file}: damaged ({claims.clean(error)}): restore it, or remove the folder and add fresh=true to "
            "--node-config"
        ) from None


def reveal(path: Path, run: str, round: int) -> None:
    """Remember that a client helps to read a sum with its upload; to be called before it does.

    Args:
        path: The client's folder.
        run: Identifier of the run.
        round: Number of the round, from 1.

    Raises:
        CheckpointError: As for :func:`revealed`.
        OutputError: If the file cannot be written.
    """
    before = revealed(path)
    write_json(path / REVEALED, {**before, run: max(round, before.get(run, 0))})


def digest(round: int, message: bytes | None) -> str:
    """Return a digest that identifies a request to train.

    Args:
        round: Number of the round.
        message: The encoded broadcast, or None.
    """
    return hashlib.blake2b(message or b"", digest_size=16, key=round.to_bytes(8, "little")).hexdigest()
