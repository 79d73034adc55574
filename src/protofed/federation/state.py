"""The state of a server between two rounds; with the clients' snapshots, the content of a checkpoint."""

from __future__ import annotations

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
