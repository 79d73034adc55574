"""A node's ledger: what has left it, one line of JSON per message, each with the hash of the line before.

A line is on disk before its message leaves. The chain shows that lines were changed, removed from the middle or put
in. It cannot show that the last lines are missing, nor that somebody who may write the file has written all of it
anew: the server's record can, because every answer carries the hash of its line, which the server keeps in
``received.jsonl`` of the run directory.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta

from protofed.errors import CheckpointError, OutputError, writing
from protofed.experiments.ending import without_clients
from protofed.storage.files import lock, read_json, write_bytes, write_json
from protofed.untrusted import claims
from protofed.untrusted.decoding import Count, Line, Round, decode, line, within
from protofed.untrusted.reading import lines, open_ordinary, parse_json, reason
from protofed_flower.folder import make_private

NAME = "ledger.jsonl"
RECEIVED = "received.jsonl"  #: File of the run directory in which the server records what it received
NODES = "nodes.json"
"""File of the run directory that records the clients, so that a restarted server knows those that are absent."""
LINE = 100_000  #: Most bytes of a line
BEGINNING = "0" * 64  #: In place of the hash of a line before the first
UNSIGNED = ("ledger", "version")  #: Values of an answer that are not of its content
Hash = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
Words: Any = line(10_000)


@dataclass(frozen=True)
class LedgerEntry:
    """One message that left."""

    time: Line  #: UTC, to the second, in ISO 8601
    client: Line
    run: Line  #: "" for a message that belongs to none yet
    round: Round  #: 0 before the first
    kind: Line  #: ``description``, ``sizes``, ``upload``, ``scores``, ``secure``, ``state`` or ``error``
    content: Words  #: In words
    bytes: Count  #: Of the content, as MessagePack
    sha256: Hash  #: Of the content, likewise
    #: Spent by the client in this run, with this message, at the run's δ; None if it adds no noise
    epsilon: Annotated[float, within(least=0)] | None
    previous: Hash  #: Hash of the line before


def canonical(values: Mapping[str, Any]) -> bytes:
    """Return the content of an answer as the same bytes at the node and at the server."""
    return msgspec.msgpack.encode({name: values[name] for name in sorted(values) if name not in UNSIGNED})


def describe(values: Mapping[str, Any], shapes: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind of an answer and its content in words; ``shapes`` are those of an upload's arrays."""
    if "error" in values:
        told = " ".join(str(values[name]) for name in ("error", "option", "names") if values.get(name))
        return "error", f"refusal: {claims.clean(told, 500)}"
    if "clients" in values:
        (client,) = json.loads(values["clients"])[:1] or [{}]
        table = f", {len(client['table'])} columns" if client.get("table") else ""
        return "description", (
            f"names of {len(client.get('classes', ()))} classes; numbers of training and test samples per class "
            f"({client.get('counts')}); shape {client.get('input_shape')} of a sample{table}; settings"
        )
    if "sizes" in values:
        return "sizes", f"sizes of the model: {values['sizes']}"
    if "losses" in values:
        arrays = ", ".join(f"{name} {'×'.join(map(str, shape)) or '1'}" for name, shape in shapes.items())
        upload = f"upload of {arrays}" if arrays else "no upload" if "message" not in values else "upload, masked"
        failure = f" ({claims.clean(values['failure'])})" if "failure" in values else ""
        return "upload", f"{upload}{failure}; training losses {values['losses']}"[:5_000]
    if "correct" in values:
        held_out = f"; validation samples: {values['validation']}" if values["validation"] != "{}" else ""
        return "scores", f"test samples classified correctly, by rule: {values['correct']}{held_out}"[:5_000]
    if values:
        return "secure", f"secure aggregation: {', '.join(sorted(values))}"
    return "state", "confirmation that the client's state is here"


@dataclass(frozen=True)
class NodeLedger:
    """The ledger of a node, which its processes share."""

    path: Path

    def record(
        self, request: Mapping[str, Any], values: Mapping[str, Any], more: Mapping[str, Any] = MappingProxyType({})
    ) -> str:
        """Add what is about to leave; return the hash of its line.

        Args:
            request: To which it is the answer.
            more: ``shapes`` of the arrays and ``epsilon``, where known.

        Raises:
            OutputError: It cannot be written, so that nothing may leave.
        """
        kind, content = describe(values, more.get("shapes", {}))
        packed = canonical(values)
        run, round_number = request.get("run", ""), request.get("round", 0)
        with writing(self.path):
            make_private(self.path.parent)
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "r+b", buffering=0) as file:
                end = time.monotonic() + 60
                while not lock(file.fileno()):
                    if time.monotonic() > end:
                        raise OutputError(f"{self.path}: another process has held it for a minute: stop that one")
                    time.sleep(0.01)
                last, torn = _last(file)
                entry = LedgerEntry(
                    datetime.now(UTC).isoformat(timespec="seconds"),
                    claims.clean(values.get("client") or request.get("client") or _name(values), 64),
                    run if isinstance(run, str) and run.isprintable() else "",
                    round_number if type(round_number) is int and 0 <= round_number < 10**6 else 0,
                    kind,
                    claims.clean(content, 9_000),
                    len(packed),
                    sha256(packed).hexdigest(),
                    more.get("epsilon"),
                    sha256(last).hexdigest() if last else BEGINNING,
                )
                written = json.dumps(asdict(entry), ensure_ascii=False).encode() + b"\n"
                file.write((b"\n" if torn else b"") + written)
                os.fsync(file.fileno())
        return sha256(written[:-1]).hexdigest()


def _name(values: Mapping[str, Any]) -> str:
    return ", ".join(str(client.get("name")) for client in json.loads(values.get("clients", "[]")))


def _last(file: BinaryIO) -> tuple[bytes, bool]:
    """Return the last line without its end, and whether that end is missing, as after a crash."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - LINE - 1))
    tail = file.read(LINE + 1)
    torn = bool(tail) and not tail.endswith(b"\n")
    return tail.removesuffix(b"\n").rpartition(b"\n")[2], torn


def read_ledger(path: Path) -> Iterator[tuple[int, str, LedgerEntry | str]]:
    """Yield every line's number, its hash, and its entry or what is wrong with it."""
    before = BEGINNING
    try:
        with open_ordinary(path) as file:
            for number, raw in enumerate(lines(file, LINE), start=1):
                text = raw.removesuffix(b"\n")
                found: LedgerEntry | str
                try:
                    found = decode(parse_json(text.decode()), LedgerEntry, error=ValueError, exact=True)
                    if not raw.endswith(b"\n"):
                        found = "is cut short: its message did not leave, or the end of the file is missing"
                    elif found.previous != before:
                        found = "does not follow the line before: one of them was changed, or lines are missing"
                except ValueError as error:
                    found = f"is no entry ({claims.clean(error, 120)}): it was changed, or cut short by a crash"
                before = sha256(text).hexdigest()
                yield number, before, found
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({reason(error)})") from None


@dataclass(frozen=True)
class Receipt:
    """An answer that the server received from a node, with the hash of the ledger line that the node names."""

    time: Line
    node: Line
    client: Line
    bytes: Count
    sha256: Hash
    ledger: Line


class Receipts:
    """The server's record of what it received in a run."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / RECEIVED

    def add(self, node: int, client: str, values: Mapping[str, Any]) -> None:
        """Add an answer as it came."""
        packed, head = canonical(values), values.get("ledger", "")
        now = datetime.now(UTC).isoformat(timespec="seconds")
        said = claims.clean(head, 64) if isinstance(head, str) else ""
        receipt = Receipt(now, str(node), claims.clean(client, 64), len(packed), sha256(packed).hexdigest(), said)
        with writing(self.path), self.path.open("ab+") as file:
            last, torn = _last(file)
            if torn:  # by a crash or a full disk
                file.truncate(file.tell() - len(last))
            file.write(json.dumps(asdict(receipt), ensure_ascii=False).encode() + b"\n")


def read_receipts(path: Path) -> Iterator[Receipt]:
    """Yield the answers that a server has recorded; a line that is still being written is left out."""
    try:
        with open_ordinary(path) as file:
            for number, raw in enumerate(lines(file, LINE), start=1):
                if raw.endswith(b"\n"):
                    yield decode(parse_json(raw), Receipt, f"line {number}", ValueError, exact=True)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({reason(error)})") from None


def forget(run: Path, gone: Mapping[str, str]) -> None:
    """Remove forgotten clients from the records in the run directory of a deployment's server."""
    if (path := run / NODES).is_file():
        write_json(path, without_clients(read_json(path), gone))
    if (path := run / RECEIVED).is_file():
        write_bytes(path, b"".join(_of_others(path, gone)))


def _of_others(path: Path, gone: Mapping[str, str]) -> Iterator[bytes]:
    """Yield the lines of a record of answers that are not of forgotten clients."""
    try:
        with open_ordinary(path) as file:
            for raw in lines(file, LINE):
                entry = parse_json(raw)
                if isinstance(entry, dict) and entry.get("client") not in gone:
                    yield raw
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({reason(error)}): move it away") from None


def compare(entries: Mapping[str, LedgerEntry], path: Path) -> Iterator[str]:
    """Compare a ledger's entries, by hash, with a server's record; yield each answer of the node that it lacks.

    Answers are its own if they come from a number from which an answer in the ledger came, or if the ledger names
    their client, as after a node was registered anew.
    """
    receipts = list(read_receipts(path))
    clients = {entry.client for entry in entries.values()}
    numbers = {receipt.node for receipt in receipts if receipt.ledger in entries}
    own = [receipt for receipt in receipts if receipt.node in numbers or receipt.client in clients]
    if receipts and not own:
        yield f"none of the {len(receipts)} answers that the server received is in the ledger"
    for receipt in own:
        entry = entries.get(receipt.ledger)
        who = f"{receipt.time} {receipt.client or f'node {receipt.node}'}"
        if entry is None:
            yield f"{who}: {receipt.bytes} bytes were received that the ledger lacks"
        elif entry.sha256 != receipt.sha256:
            yield f"{who}: what was received is not what the ledger says had left"
