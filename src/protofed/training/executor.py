"""Executors decide how clients are run; what is computed does not depend on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from protofed.training.client import Client
from protofed.training.visit import Evaluated, Trained, Visitor

Messages = Mapping[str, bytes | None]
"""The encoded broadcast of each client."""


class Executor(Protocol):
    """Runs visits and yields their results in the order of ``names``."""

    clients: Mapping[str, Client]

    def train(self, names: Iterable[str], messages: Messages, round: int) -> Iterator[Trained]:
        """Train the named clients."""
        ...

    def evaluate(self, names: Iterable[str], messages: Messages | None, round: int) -> Iterator[Evaluated]:
        """Evaluate the named clients; without messages, as they were left by training."""
        ...


class Sequential:
    """One client after the other in this process: the readable reference."""

    def __init__(self, visitor: Visitor, clients: Mapping[str, Client]) -> None:
        self.visitor = visitor
        self.clients = clients

    def train(self, names: Iterable[str], messages: Messages, round: int) -> Iterator[Trained]:
        """Train the named clients."""
        for name in names:
            yield self.visitor.train(self.clients[name], messages[name], round)

    def evaluate(self, names: Iterable[str], messages: Messages | None, round: int) -> Iterator[Evaluated]:
        """Evaluate the named clients; without messages, as they were left by training."""
        for name in names:
            message = messages[name] if messages else None
            deliver = messages is not None
            yield self.visitor.evaluate(self.clients[name], message, round, deliver=deliver)
