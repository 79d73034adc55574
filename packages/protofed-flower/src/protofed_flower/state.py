"""Storage of a client at its node: one folder per run, which belongs to the node.

Flower discards a node's context when the node restarts, so nodes store their clients themselves. Every visit that
changes a client creates a new *generation* of it. The node reports its name to the server, and each request of the
server names the generation from which, or from a descendant of which, the visit must start. A node that does not
have it refuses, so no visit starts from weights that are not the client's.

A node keeps the generation that the server knows, the one in the server's last checkpoint, the newest, and the one
that was scored last, which :mod:`protofed_flower.own` shows. A server that lost its last round requests that
round again. If the request is the same as before, the node repeats its answer; otherwise the client trains again
from its state before the round. Either way, no round is learned twice.
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
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from protofed.engine import Snapshot
from protofed.errors import CheckpointError, ConfigError, writing
from protofed.experiments.ending import client_model
from protofed.storage import snapshots
from protofed.storage.files import PARTIAL, check_format, lock, read_json, write_bytes, write_json
from protofed.untrusted import claims, limits
from protofed.untrusted.decoding import Round, check_with, decode, within
from protofed.untrusted.reading import read_bytes, reason
from protofed_flower.folder import make_private
from protofed_flower.messages import GenerationName

VERSION = 3  #: Format version of the index
INDEX = "state.json"
LOCK, TURN = ".lock", ".turn"
REVEALED = "revealed.json"  #: The last round of each run in which the client helped to read a sum with its upload
LOOK = 0.1  #: Seconds between two attempts to take a client's lock
GENERATIONS = "generations"
"""Folder of the generations, each a folder with the files that a run directory has of a client, and the answer."""
MODEL, REST, REPLY = "model.safetensors", "state.safetensors", "reply"
RUNS = 32  #: Runs of which a node keeps a client, unless its operator chooses another number


def _losses(value: object) -> str:
    if not isinstance(value, str) or not isinstance(json.loads(value), dict):
        raise ValueError("expected a table, as JSON")
    return value


if TYPE_CHECKING:
    Losses = str
else:
    Losses = check_with(_losses)


@dataclass(frozen=True)
class Generation:
    """One state of a client on disk."""

    name: GenerationName  #: Also of its folder
    round: Round
    trained: bool  #: By that visit; otherwise it delivered the round's outcome
    request: str
    answered: bool
    losses: Losses  #: As JSON (they may be NaN)

    @property
    def place(self) -> tuple[int, bool]:
        """Position in the course of a run: a round first trains, then delivers."""
        return self.round, not self.trained


@dataclass(frozen=True)
class _State:
    """The content of an index."""

    run: str
    order: Annotated[int, within(least=0, most=limits.ORDER)]
    chain: Annotated[list[Generation], Meta(max_length=limits.ROUNDS)]
    notes: dict[str, list[Any]]
    version: int = 1


@contextlib.contextmanager
def locked(path: Path, order: int) -> Iterator[None]:
    """Lock a client's run against visits by other processes of this node; those of other runs go on.

    Of several requests, only the newest waits for the visit in progress, so that processes do not accumulate on a
    slow node.

    Raises:
        CheckpointError: If a later request of the run arrived in the meantime.
    """
    make_private(path)
    with (path / LOCK).open("a") as file:
        if not lock(file):
            if _turn(path) > order:
                raise CheckpointError(
                    f"{path.parent.name}: a later request of the server waits for the visit in progress",
                    code="later",
                )
            write_bytes(path / TURN, str(order).encode())
            while not lock(file):
                if _turn(path) != order:
                    raise CheckpointError(
                        f"{path.parent.name}: a later request of the server replaced this one", code="later"
                    )
                time.sleep(LOOK)
        yield


def _turn(path: Path) -> int:
    """Return the number of the request that waits or was the last to wait, or -1 if there is none."""
    try:
        return int((path / TURN).read_text()[:20])
    except (OSError, ValueError):
        return -1


class ClientFolder:
    """The files of one client in one run.

    Args:
        path: Of the client; that of the run in it is created when first written to.

    Attributes:
        chain: Stored generations, oldest first, each a descendant of the one before.
        notes: Plain values stored for this run.

    Raises:
        CheckpointError: If the index is damaged, or the folder is that of another run.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.client = path.name
        self.path = path / run
        self.run = run
        self.chain: list[Generation] = []
        self.order = 0
        self.notes: dict[str, Any] = {}
        if (self.path / INDEX).is_file():
            self._load(self.path / INDEX)

    def _load(self, index: Path) -> None:
        content = read_json(index)
        check_format(index, content.get("version", 1), VERSION)
        try:
            found = decode(content, _State, error=ValueError, exact=True)
            if found.run != self.run:  # where names that differ in case only are the same
                raise ValueError(f"of run {claims.clean(found.run, 40)}, not {self.run}")
        except ValueError as error:
            raise CheckpointError(
                f"{index}: damaged ({claims.clean(error)}): "
                "restore it, or remove the folder and add fresh=true to --node-config"
            ) from None
        self.chain, self.order, self.notes = found.chain, found.order, found.notes

    def check_new(self, most: int) -> None:
        """Refuse to begin a run of a client of which the node keeps ``most`` already."""
        folder = self.path.parent
        if self.chain or not folder.is_dir():
            return
        if sum((other / INDEX).is_file() for other in folder.iterdir()) >= most:
            raise ConfigError(
                f"{self.client}: its node keeps {most} runs, as many as it may: move folders of old ones out of "
                "its state-dir, or raise runs in --node-config",
                code="full",
            )

    def since(self, after: str) -> list[Generation] | None:
        """Return a generation ("" for the first state) and its descendants, oldest first; None if missing."""
        if not after:
            return self.chain
        names = [generation.name for generation in self.chain]
        return self.chain[names.index(after) :] if after in names else None

    def held(self, after: str, instead: str) -> list[Generation] | None:
        """Return :meth:`since`, or None for a lost client that may start afresh; otherwise CheckpointError.

        Args:
            instead: End of the error; "" if a lost client may start afresh.
        """
        held = self.since(after)
        if held is None and instead:
            newest = f"its newest is {self.chain[-1].name}" if self.chain else "it has none of this run"
            newest += ", but one of an older version" if (self.path.parent / INDEX).is_file() else ""
            raise CheckpointError(
                f"{self.client}: the node does not have state {after}, where the visit must start ({newest}): "
                f"restore its state-dir, {instead}"
            )
        return held

    def _folder(self, generation: Generation) -> Path:
        return self.path / GENERATIONS / generation.name

    def read(self, generation: Generation) -> Snapshot:
        """Return the client's state in a generation."""
        folder = self._folder(generation)
        return snapshots.read(folder / REST, folder / MODEL)

    def reply(self, generation: Generation) -> bytes | None:
        """Return the encoded answer of the visit that created a generation, or None if there was none."""
        path = self._folder(generation) / REPLY
        try:
            return read_bytes(path, limits.RUN_FILE_BYTES) if generation.answered else None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: cannot be read ({reason(error)})") from None

    def write(
        self,
        snapshot: Snapshot,
        round_number: int,
        request: str = "",
        reply: bytes | None = None,
        losses: str = "{}",
        *,
        same_model: Generation | None = None,
    ) -> Generation:
        """Write the files of a new generation, which becomes the client's state with :meth:`commit`.

        Args:
            request: Digest of the broadcast of a visit that trained, else "".
            losses: As JSON.
            same_model: Its file of weights is shared.
        """
        name = f"{round_number:06d}-{secrets.token_hex(8)}"
        new = Generation(name, round_number, bool(request), request, bool(reply), losses)
        folder = self._folder(new)
        partial = folder.with_name(f".{name}{PARTIAL}")
        with writing(folder):
            try:
                partial.mkdir(parents=True)
                if same_model is None:
                    snapshots.write_tensors(partial / MODEL, snapshot.model)
                else:
                    _link(self._folder(same_model) / MODEL, partial / MODEL)
                snapshots.write_tensors(partial / REST, snapshots.flatten(snapshot._replace(model={})))
                if reply:
                    write_bytes(partial / REPLY, reply)
                os.rename(partial, folder)
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
        return new

    def commit(self, new: Generation, start: Generation | None, order: int, keep: set[str]) -> None:
        """Make a new generation the client's state, which is unchanged until then.

        Args:
            start: Start of the visit; None for the client as it was before the run.
            keep: Generations to which the server may still return; ancestors of ``new`` are kept.
        """
        before = self.chain[: self.chain.index(start) + 1] if start else []
        self._write_index([g for g in before if g.name in keep or g == start] + [new], order)
        self._tidy()

    def remember(self) -> None:
        """Store the notes."""
        self._write_index(self.chain, self.order)

    def _write_index(self, chain: list[Generation], order: int) -> None:
        index = {
            "version": VERSION,
            "run": self.run,
            "order": order,
            "chain": [asdict(g) for g in chain],
            "notes": self.notes,
        }
        write_json(self.path / INDEX, index)
        self.chain, self.order = chain, order

    def show(self, generation: Generation) -> None:
        """Let the run directory have a generation as the client's model and state, both at once."""
        place = client_model(self.path, self.client).parent
        partial = place.with_name(f".{place.name}{PARTIAL}")
        with writing(place):
            place.parent.mkdir(exist_ok=True)
            _remove(partial)
            try:
                partial.symlink_to(Path("..", GENERATIONS, generation.name), target_is_directory=True)
            except OSError:  # a file system without links
                shutil.copytree(self._folder(generation), partial)
            if not place.is_symlink():  # a copy, which nothing can replace at once
                _remove(place)
            os.replace(partial, place)
        self._tidy()

    def _tidy(self) -> None:
        """Remove the generations that are neither kept nor shown, and what a killed process left."""
        shown = client_model(self.path, self.client).parent.resolve()
        kept = {self._folder(g).name for g in self.chain} | {shown.name}
        with writing(self.path):
            for folder in (self.path / GENERATIONS).iterdir():
                if folder.name not in kept:
                    shutil.rmtree(folder)
            for partial in self.path.glob(f".*{PARTIAL}"):
                partial.unlink(missing_ok=True)


def _remove(folder: Path) -> None:
    """Remove a folder, or a link to one; nothing if there is none."""
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def _link(existing: Path, new: Path) -> None:
    """Give a file a second name, or copy it where that is impossible."""
    try:
        os.link(existing, new)
    except OSError:
        shutil.copyfile(existing, new)


def revealed(path: Path) -> dict[str, int]:
    """Return the last round, by run, in which a client helped to read a sum with its upload."""
    file = path / REVEALED
    if not file.exists():
        return {}
    try:
        return decode(
            read_json(file), dict[str, Annotated[int, within(least=1, most=limits.ROUNDS)]], error=ValueError
        )
    except ValueError as error:
        raise CheckpointError(
            f"{file}: damaged ({claims.clean(error)}): restore it, or remove the folder and add fresh=true to "
            "--node-config"
        ) from None


def reveal(path: Path, run: str, round_number: int) -> None:
    """Remember that a client helps to read a sum with its upload; to be called before it does."""
    with contextlib.ExitStack() as stack:
        with writing(path):
            make_private(path)
            file = stack.enter_context((path / LOCK).open("a"))
        while not lock(file):  # another run does so at the same time
            time.sleep(LOOK)
        before = revealed(path)
        write_json(path / REVEALED, {**before, run: max(round_number, before.get(run, 0))})


def digest(round_number: int, message: bytes | None) -> str:
    """Return a digest that identifies a request to train."""
    return hashlib.blake2b(message or b"", digest_size=16, key=round_number.to_bytes(8, "little")).hexdigest()
