"""The state of a server between two rounds; with the clients' snapshots, the content of a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from protofed.errors import DivergedError
from protofed.methods.contract import Method, Tensors
from protofed.rounds.standing import Standing
from protofed.untrusted import claims
from protofed.wire.validate import check_values


@dataclass
class ServerState:
    """Everything that a server needs in order to resume.

    Attributes:
        generations: Name of the state that each node confirmed last, for clients that rest on nodes.
        saved: Copy of ``generations`` at the last checkpoint, to which the server may have to return.
        forgotten: Date on which each client was taken out of the run, by name (``protofed forget``).
    """

    round: int = 0
    tensors: Tensors = field(default_factory=dict)
    standing: Standing = field(default_factory=Standing)
    generations: dict[str, str] = field(default_factory=dict)
    saved: dict[str, str] = field(default_factory=dict)
    forgotten: dict[str, str] = field(default_factory=dict)


def read_generations(value: object, clients: Collection[str]) -> dict[str, str]:
    """Return the state that each client on a node had, by name; ValueError if ``value`` holds anything else."""
    if not isinstance(value, Mapping) or not all(n in clients and isinstance(g, str) for n, g in value.items()):
        raise ValueError("does not say which states its clients had")
    return dict(value)


def read_forgotten(value: object) -> dict[str, str]:
    """Return the date on which each client was taken out of a run; ValueError if ``value`` holds anything else."""
    found = claims.mapping(value, "forgotten", value if isinstance(value, Mapping) else ())
    if not all(isinstance(date, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", date) for date in found.values()):
        raise ValueError("forgotten: expected dates by name")
    return {claims.client_name(name): date for name, date in found.items()}


def unsound(method: Method, state: Tensors, round: int) -> str:
    """Return why clients would refuse the broadcast that follows from a state; "" if they would accept it."""
    for name, tensor in state.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            return f"{name}: not finite"
    schema = method.broadcast_schema
    if schema is None or method.declared.personal:
        return ""
    payload = method.broadcast(state, round + 1)
    try:
        check_values(payload or {}, schema if payload else replace(schema, fields={}))
    except DivergedError as error:
        return str(error)
    return ""
