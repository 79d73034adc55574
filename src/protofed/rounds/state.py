"""The state of a server between two rounds; with the clients' snapshots, the content of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct
from torch import Tensor

from protofed.errors import CheckpointError, PayloadError
from protofed.methods.contract import Method, Tensors
from protofed.rounds.standing import Refusals, Standing
from protofed.storage.files import check_format, read_json
from protofed.untrusted import claims
from protofed.untrusted.decoding import Round, check_with, decode
from protofed.wire.codec import Codec

if TYPE_CHECKING:
    from protofed.visits.roster import Roster


@dataclass
class ServerState:
    """Everything that a server needs in order to resume."""

    round: int = 0
    tensors: Tensors = field(default_factory=dict)
    standing: Standing = field(default_factory=Standing)
    #: Name of the state that each node confirmed last, for clients that rest on nodes
    generations: dict[str, str] = field(default_factory=dict)
    #: Copy of ``generations`` at the last checkpoint, to which the server may have to return
    saved: dict[str, str] = field(default_factory=dict)
    #: Date on which each client was taken out of the run, by name (``protofed forget``)
    forgotten: dict[str, str] = field(default_factory=dict)

    def to_dict(self, clients: Iterable[str]) -> dict[str, Any]:
        """Return the JSON values that are stored beside the tensors."""
        return {
            "round": self.round,
            "clients": list(clients),
            "refusals": self.standing.to_dict(),
            "generations": dict(self.generations),
            **({"forgotten": self.forgotten} if self.forgotten else {}),
        }


def _date(value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        raise ValueError(f"expected a date, not {claims.describe(value)}")
    return value


if TYPE_CHECKING:
    Date = str
else:
    Date = check_with(_date)


class StoredState(Struct):
    """What a checkpoint and the end of a run hold of a server's state beside its tensors."""

    round: Round
    clients: list[str]
    refusals: Refusals
    generations: dict[str, str] = {}
    forgotten: dict[str, Date] = {}

    def __post_init__(self) -> None:
        if not self.generations.keys() <= set(self.clients):
            raise ValueError("does not say which states its clients had")
        for name in self.forgotten:
            claims.client_name(name)

    @classmethod
    def read(cls, path: Path, version: int) -> Self:
        """Return what a file holds."""
        record = read_json(path)
        check_format(path, record.get("version", 1), version)
        return decode(record, cls, f"{path}: damaged")

    def of(self, clients: Roster, path: Path) -> ServerState:
        """Return the state, without tensors."""
        if self.clients != list(clients):
            raise CheckpointError(f"{path}: was written for other clients")
        if clients.rests_here and self.generations:
            raise CheckpointError(f"{path}: its clients are at the nodes of a network: continue it with flwr run")
        try:
            standing = Standing.of(self.refusals, self.clients)
        except ValueError as error:
            raise CheckpointError(f"{path}: damaged: {error}") from None
        return ServerState(self.round, {}, standing, self.generations, dict(self.generations), self.forgotten)


def _rows(tensor: Tensor) -> tuple[int, ...]:
    return (tensor.dim(), *tensor.shape[1:])


def fitting(found: Tensors, initial: Tensors, path: Path) -> Tensors:
    """Return the tensors of a server in a file.

    Args:
        initial: Those before the first round; later there may be more, and other numbers of rows.
    """
    for name, tensor in initial.items():
        if name not in found or (tensor.numel() and _rows(found[name]) != _rows(tensor)):
            raise CheckpointError(f"{path}: does not fit the method ({name} is missing or has another shape)")
    return found


def unsound(method: Method, codec: Codec, state: Tensors, round_number: int) -> str:
    """Return why clients would refuse the broadcast that follows from a state; "" if they would accept it."""
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            return f"{name}: not finite"
    schema = method.broadcast_schema
    if schema is None or method.declared.personal:
        return ""
    payload = method.broadcast(state, round_number + 1)
    try:
        codec.check(payload or {}, schema if payload else replace(schema, fields={}))
    except PayloadError as error:
        return str(error)
    return ""
