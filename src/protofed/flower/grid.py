"""Nodes behind Flower's grid, as an executor: the round loop does not know that its clients are elsewhere."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from protofed.errors import PayloadError
from protofed.flower.census import Shared
from protofed.flower.messages import Job, Left, Scored, Values, read_evaluated, read_trained
from protofed.flower.nodes import EVALUATE, QUERY, RECORD, TRAIN, Nodes, message, reason_of, values_of
from protofed.training import Evaluated, Messages, Missing, Parked, Roster, Trained
from protofed.training.client import pack, unpack

__all__ = ["EVALUATE", "QUERY", "RECORD", "TRAIN", "GridExecutor", "Nodes"]

UNDER_WAY = 2**28
"""Bytes of clients' models that are on their way to nodes at a time, in a simulation."""
T = TypeVar("T", Trained, Evaluated)


class GridExecutor:
    """Sends visits to nodes.

    A client whose state is here (``clients.here``) travels with its visits, which may then happen anywhere: that is
    a simulation. Nodes of a deployment keep their clients; the server knows by name what each of them holds.

    Args:
        nodes: Who is connected.
        run: Identifies the run.
        order: Number that the requests begin with, higher than all of the run before.
        clients: As the server knows them.
        shared: What each client is told of the federation.
        scored: By how many samples each client counts.
        rules: By which the method classifies.
        deadline: Seconds to wait for the answers of a round; 0 waits as long as it takes.
        began_anew: Is told when a client has: its name and the round.
    """

    def __init__(
        self,
        nodes: Nodes,
        run: str,
        order: int,
        clients: Roster,
        shared: Mapping[str, Shared],
        scored: Mapping[str, Scored],
        rules: tuple[str, ...],
        deadline: float,
        began_anew: Callable[[str, int], None],
    ) -> None:
        self.nodes = nodes
        self.run = run
        self.orders = itertools.count(order)
        self.clients = clients
        self.shared = {name: s.to_json() for name, s in shared.items()}
        self.scored = scored
        self.rules = rules
        self.deadline = deadline
        self.began_anew = began_anew
        self.round = 0
        self.origins: dict[str, str] = {}

    def train(self, names: Iterable[str], messages: Messages, round: int) -> Iterator[Trained | Missing]:
        """Train the named clients, wherever they are."""
        if round != self.round:  # a round that is repeated starts where it started
            self.round, self.origins = round, dict(self.clients.generations)
        jobs = [self._job(name, messages[name], round, self.origins) for name in names]

        def read(values: Values, name: str) -> Trained:
            return read_trained(values, name, self.scored[name])

        yield from self._answers(jobs, TRAIN, read)

    def evaluate(
        self, names: Iterable[str], messages: Messages | None, round: int
    ) -> Iterator[Evaluated | Missing]:
        """Evaluate the named clients; without messages, as they were left by training."""
        jobs = [
            replace(
                self._job(name, messages[name] if messages else None, round, self.clients.generations),
                deliver=messages is not None,
            )
            for name in names
        ]

        def read(values: Values, name: str) -> Evaluated:
            return read_evaluated(values, name, self.scored[name], self.rules)

        yield from self._answers(jobs, EVALUATE, read)

    def description(self) -> dict[str, str | int]:
        """Return what a report says of it."""
        return {"executor": "flower", "nodes": len(set(self.nodes.node_of.values()))}

    def close(self) -> None:
        """Free the store; nodes outlive a run."""
        self.clients.store.close()

    def _job(self, name: str, message: bytes | None, round: int, generations: Mapping[str, str]) -> Job:
        after, saved = generations.get(name, ""), self.clients.saved.get(name, "")
        own = self.nodes.config, self.shared[name], message
        return Job(self.run, name, round, *own, order=next(self.orders), after=after, saved=saved)

    def _answers(self, jobs: Sequence[Job], kind: str, read: Callable[[Values, str], T]) -> Iterator[T | Missing]:
        """Send jobs; yield answers in their order as soon as it is complete so far."""
        self.nodes.refresh()
        there = [job for job in jobs if job.client in self.nodes.node_of]
        found: dict[str, T | Missing] = {
            job.client: Missing(job.client, "not connected") for job in jobs if job.client not in self.nodes.node_of
        }
        order = iter(jobs)
        job = next(order, None)
        messages = (message(self._packed(j).to_values(), self.nodes.node_of[j.client], kind) for j in there)
        for number, reply in self.nodes.exchange(messages, self.deadline, self._at_once()):
            name = there[number].client
            try:
                values = values_of(reply)
                result, left = read(values, name), self._left(there[number], values)
            except Exception as error:  # whatever a node sent: it must not end the run
                found[name] = Missing(name, reason_of(error))
            else:
                self._keep(there[number], *left)
                found[name] = result
            while job is not None and job.client in found:
                yield found.pop(job.client)
                job = next(order, None)
        late = f"no answer within {self.deadline:g} s" if self.deadline else "could not be sent"
        while job is not None:
            yield found.pop(job.client, Missing(job.client, late))
            job = next(order, None)

    def _packed(self, job: Job) -> Job:
        """Return a job with its client, if that is here."""
        return replace(job, state=pack(self.clients.parked(job.client))) if job.client in self.clients.here else job

    def _at_once(self) -> int:
        """Return how many visits may be under way at a time."""
        if not self.clients.here:
            return sys.maxsize
        largest = max(sum(t.nbytes for t in m.state_dict().values()) for m in self.clients.models.values())
        result: int = max(16, UNDER_WAY // max(1, largest))
        return result

    def _left(self, job: Job, values: Values) -> tuple[Left, Parked | None]:
        """Return what a visit left of its client, and the client itself if it travels and has changed.

        Raises:
            PayloadError: If the answer does not say, or the client does not fit its model any more.
        """
        left = Left.of(values)
        if job.client not in self.clients.here:
            if left.state is not None:
                raise PayloadError("state: not asked for")
            if job.deliver and not left.generation:
                raise PayloadError("generation: missing")
            return left, None
        if left.generation or left.anew:
            raise PayloadError("generation: the client is not the node's")
        if not job.deliver:
            return left, None
        parked = unpack(left.state or b"")
        if parked.model and not _same_form(parked.model, self.clients.parked(job.client).model):
            raise PayloadError(f"state: does not fit the model of {job.client}")
        return left, parked

    def _keep(self, job: Job, left: Left, parked: Parked | None) -> None:
        """Take note of what a visit left of its client."""
        if left.anew:
            self.began_anew(job.client, job.round)
        if left.generation:
            self.clients.generations[job.client] = left.generation
        if parked is not None:
            self.clients.store.write(job.client, parked, model=bool(parked.model))


def _same_form(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all((a[n].shape, a[n].dtype) == (b[n].shape, b[n].dtype) for n in a)
