"""The state of a server between two rounds; with the clients' snapshots, the content of a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from protofed.federation.standing import Standing
from protofed.methods.contract import Tensors


@dataclass
class ServerState:
    """Everything that a server needs in order to resume.

    Attributes:
        round: Rounds completed.
        tensors: The method's server state.
        standing: Record of refused uploads.
        generations: Name of the state that each node confirmed last, for clients that rest on nodes.
        saved: Copy of ``generations`` at the last checkpoint, to which the server may have to return.
    """

    round: int = 0
    tensors: Tensors = field(default_factory=dict)
    standing: Standing = field(default_factory=Standing)
    generations: dict[str, str] = field(default_factory=dict)
    saved: dict[str, str] = field(default_factory=dict)


def read_generations(value: object, clients: Collection[str]) -> dict[str, str]:
    """Return the name of the state that each client on a node had, from plain values.

    Args:
        value: The plain values.
        clients: Names of all clients.

    Raises:
        ValueError: If they are no such names.
    """
    if not isinstance(value, Mapping) or not all(n in clients and isinstance(g, str) for n, g in value.items()):
        raise ValueError("does not say which states its clients had")
    return dict(value)
