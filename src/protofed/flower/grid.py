"""Nodes behind Flower's grid, as an executor: the round loop does not know that its clients are elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from protofed.flower.census import Shared
from protofed.flower.messages import Job, Scored, Values, read_evaluated, read_trained
from protofed.flower.nodes import EVALUATE, QUERY, RECORD, TRAIN, Nodes, message, reason_of, values_of
from protofed.training import Evaluated, Messages, Missing, Roster, Trained

__all__ = ["EVALUATE", "QUERY", "RECORD", "STATES", "TRAIN", "GridExecutor", "Nodes"]

STATES = "nodes"
"""In the run directory of a simulation, while it runs: what deployed nodes keep themselves."""
T = TypeVar("T", Trained, Evaluated)


class GridExecutor:
    """Sends visits to nodes.

    Args:
        nodes: Who is connected.
        run: Identifies the run.
        home: The run directory.
        clients: As the server knows them.
        shared: What each client is told of the federation.
        scored: By how many samples each client counts.
        rules: By which the method classifies.
        deadline: Seconds to wait for the answers of a round; 0 waits as long as it takes.
    """

    def __init__(
        self,
        nodes: Nodes,
        run: str,
        home: Path,
        clients: Roster,
        shared: Mapping[str, Shared],
        scored: Mapping[str, Scored],
        rules: tuple[str, ...],
        deadline: float,
    ) -> None:
        self.nodes = nodes
        self.run = run
        self.home = str(home.resolve())
        self.clients = clients
        self.shared = {name: s.to_json() for name, s in shared.items()}
        self.scored = scored
        self.rules = rules
        self.deadline = deadline

    def train(self, names: Iterable[str], messages: Messages, round: int) -> Iterator[Trained | Missing]:
        """Train the named clients, wherever they are."""
        jobs = [self._job(name, messages[name], round) for name in names]

        def read(values: Values, name: str) -> Trained:
            return read_trained(values, name, self.scored[name])

        yield from self._answers(jobs, TRAIN, read)

    def evaluate(
        self, names: Iterable[str], messages: Messages | None, round: int
    ) -> Iterator[Evaluated | Missing]:
        """Evaluate the named clients; without messages, as they were left by training."""
        jobs = [
            replace(self._job(name, messages[name] if messages else None, round), deliver=messages is not None)
            for name in names
        ]

        def read(values: Values, name: str) -> Evaluated:
            return read_evaluated(values, name, self.scored[name], self.rules)

        yield from self._answers(jobs, EVALUATE, read)

    def description(self) -> dict[str, str | int]:
        """Return what a report says of it."""
        return {"executor": "flower", "nodes": len(set(self.nodes.node_of.values()))}

    def close(self) -> None:
        """Nothing to free: nodes outlive a run."""

    def _job(self, name: str, message: bytes | None, round: int) -> Job:
        return Job(self.run, name, round, self.nodes.config, self.shared[name], message, home=self.home)

    def _answers(self, jobs: Sequence[Job], kind: str, read: Callable[[Values, str], T]) -> Iterator[T | Missing]:
        """Send jobs; yield answers in their order as soon as it is complete so far."""
        self.nodes.refresh()
        there = [job for job in jobs if job.client in self.nodes.node_of]
        found: dict[str, T | Missing] = {
            job.client: Missing(job.client, "not connected") for job in jobs if job.client not in self.nodes.node_of
        }
        order = iter(jobs)
        job = next(order, None)
        messages = [message(job.to_values(), self.nodes.node_of[job.client], kind) for job in there]
        for number, reply in self.nodes.exchange(messages, self.deadline):
            name = there[number].client
            try:
                found[name] = read(values_of(reply), name)
            except Exception as error:  # whatever a node sent: it must not end the run
                found[name] = Missing(name, reason_of(error))
            while job is not None and job.client in found:
                yield found.pop(job.client)
                job = next(order, None)
        late = f"no answer within {self.deadline:g} s" if self.deadline else "could not be sent"
        while job is not None:
            yield found.pop(job.client, Missing(job.client, late))
            job = next(order, None)
