"""The contract of executors: the results of visits, and who carries these out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from protofed.visits.roster import Roster

Messages = Mapping[str, bytes | None]  #: Encoded broadcast of each client

Scores = tuple[Mapping[str, float], int]  #: Correct answers by rule, and the number of samples

On = Literal["own", "union", "balanced", "shifted"]  #: Whose test samples clients are scored on


@dataclass(frozen=True)
class Trained:
    """Result of a training visit."""

    client: str
    message: bytes | None  # None if the round does not communicate
    losses: dict[str, float]  # mean per sample over the round, by term
    samples: int
    seconds: float
    failure: str = ""  # why a communicating round has no upload: the model has diverged, or a number is too large
    late: int = 0  # rounds since the client was asked


@dataclass(frozen=True)
class Evaluated:
    """Result of an evaluation visit."""

    client: str
    correct: Mapping[str, float]  # per rule; estimated if the client withholds its counts
    samples: int  # evaluated ones
    seconds: float
    validation: Scores = field(default_factory=lambda: ({}, 0))  # ``(correct, samples)`` of the validation split
    union: Scores = field(default_factory=lambda: ({}, 0))  # of the test samples of all clients together, if scored
    #: The part of ``union`` whose classes the client has no training samples of
    unseen: Scores = field(default_factory=lambda: ({}, 0))


@dataclass(frozen=True)
class Missing:
    """Placeholder for the result of a client that is late or gone, or whose visit failed."""

    client: str
    reason: str  # as one line


class Executor(Protocol):
    """Runs visits and yields their results in the order of ``names``."""

    clients: Roster
    remote: bool  # visits go over a network and may therefore fail

    def train(self, names: Iterable[str], messages: Messages, round_number: int) -> Iterator[Trained | Missing]:
        """Train clients."""
        ...

    def announce(self, names: Iterable[str]) -> None:
        """Announce the clients that train next, on the broadcasts that the following evaluation delivers.

        Over a network they may begin at once, which saves an exchange; elsewhere this does nothing.
        """
        return

    def evaluate(
        self, names: Iterable[str], messages: Messages | None, round_number: int
    ) -> Iterator[Evaluated | Missing]:
        """Evaluate clients.

        Args:
            messages: None to evaluate clients as training left them.
        """
        ...

    def description(self) -> dict[str, str | int]:
        """Return facts about the executor for reports."""
        ...

    def close(self) -> None:
        """Free processes and files; the executor cannot be used afterwards."""
        ...
