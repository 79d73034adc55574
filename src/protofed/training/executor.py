"""Executors decide how clients are run; what is computed does not depend on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import torch

from protofed.training.roster import Roster
from protofed.training.visit import Evaluated, Missing, Trained, Visitor

Messages = Mapping[str, bytes | None]
"""The encoded broadcast of each client."""


class Executor(Protocol):
    """Runs visits and yields their results in the order of ``names``."""

    clients: Roster

    def train(self, names: Iterable[str], messages: Messages, round: int) -> Iterator[Trained | Missing]:
        """Train the named clients."""
        ...

    def evaluate(
        self, names: Iterable[str], messages: Messages | None, round: int
    ) -> Iterator[Evaluated | Missing]:
        """Evaluate the named clients; without messages, as they were left by training."""
        ...

    def description(self) -> dict[str, str | int]:
        """Return what a report says of it."""
        ...

    def close(self) -> None:
        """Free processes and files; the executor is not used afterwards."""
        ...


class Sequential:
    """One client after the other in this process: the readable reference."""

    def __init__(self, visitor: Visitor, clients: Roster) -> None:
        self.visitor = visitor
        self.clients = clients

    def train(self, names: Iterable[str], messages: Messages, round: int) -> Iterator[Trained]:
        """Train the named clients."""
        for name in names:
            with self.clients.visit(name) as client:
                result = self.visitor.train(client, messages[name], round)
            yield result

    def evaluate(self, names: Iterable[str], messages: Messages | None, round: int) -> Iterator[Evaluated]:
        """Evaluate the named clients; without messages, as they were left by training."""
        for name in names:
            deliver = messages is not None
            with self.clients.visit(name, keep=deliver) as client:
                message = messages[name] if messages else None
                result = self.visitor.evaluate(client, message, round, deliver=deliver)
            yield result

    def description(self) -> dict[str, str | int]:
        """Return what a report says of it."""
        return {"executor": "sequential", "threads": torch.get_num_threads()}

    def close(self) -> None:
        """Free the store."""
        self.clients.store.close()
