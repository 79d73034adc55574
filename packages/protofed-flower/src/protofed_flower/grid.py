"""The executor that sends visits to the nodes behind Flower's grid, transparently to the round loop."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from protofed.engine import Evaluated, Messages, Missing, Roster, ServerState, Snapshot, Trained
from protofed.errors import PayloadError
from protofed.storage.snapshots import pack, unpack
from protofed_flower.messages import Job, Scored, Values, VisitOutcome, read_evaluated, read_trained
from protofed_flower.nodes import EVALUATE, SECURE, TRAIN, Nodes, message, reason_of

if TYPE_CHECKING:
    from protofed_flower.protocol import Stage

UNDER_WAY = 2**28  #: Maximum bytes of clients' models in transit at a time, in a simulation
MESSAGES = 16, 64  #: Least and most messages in transit at a time, in a simulation, whatever they hold
VISITS = 8
"""Maximum visits in one message; each message costs the engine about as much as a visit of a small client."""
T = TypeVar("T", Trained, Evaluated)


@dataclass(eq=False)
class GridExecutor:
    """Executor that sends visits to nodes.

    In a simulation, clients are stored at the server and travel with their visits, so any node can carry these out.
    Nodes of a deployment keep their clients; the server knows the name of the state that each of them holds.

    Args:
        order: Of the first request, higher than all earlier ones of the run.
        summaries: By client, as JSON.
        scored: Numbers of samples that each client counts for.
        began_anew: Called with a client that started afresh because its state was lost, and the round.
    """

    remote = True

    nodes: Nodes
    run: str
    order: int
    clients: Roster
    state: ServerState
    summaries: Mapping[str, str]
    scored: Mapping[str, Scored]
    rules: tuple[str, ...]
    deadline: float
    began_anew: Callable[[str, int], None]

    def __post_init__(self) -> None:
        self.orders = itertools.count(self.order)
        self.round = 0
        self.origins: dict[str, str] = {}
        self.next: frozenset[str] = frozenset()
        self.early: dict[str, tuple[Job, Trained, VisitOutcome]] = {}

    def train(self, names: Iterable[str], messages: Messages, round_number: int) -> Iterator[Trained | Missing]:
        """Train clients at their nodes, in this order; ``Missing`` stands for one without a usable answer."""
        if round_number != self.round:  # a repeated round starts from the same states
            self.round, self.origins = round_number, dict(self.state.generations)
        jobs = [self._job(name, messages[name], round_number, self.origins) for name in names]
        done: dict[str, Trained | Missing] = {}
        for name, (job, result, left) in self.early.items():
            if job.round == round_number and name in messages and job.message == messages[name]:
                self._keep(job, left)
                done[name] = result
        self.early = {}
        yield from self._answers(jobs, TRAIN, self._read_trained, done, {})

    def announce(self, names: Iterable[str]) -> None:
        """Let the named clients train as soon as they are scored, if their nodes store them."""
        self.next = frozenset() if self.clients.rests_here else frozenset(names)

    def evaluate(
        self, names: Iterable[str], messages: Messages | None, round_number: int
    ) -> Iterator[Evaluated | Missing]:
        """Evaluate clients at their nodes, in this order; ``Missing`` stands for one without a usable answer.

        Args:
            messages: Delivered first; None to evaluate clients as training left them.
        """
        jobs, further = [], {}
        for name in names:
            message = messages[name] if messages else None
            job = self._job(name, message, round_number, self.state.generations)
            jobs.append(replace(job, deliver=messages is not None))
            if messages and name in self.next:
                job = self._job(name, message, round_number + 1, self.state.generations)
                further[name] = replace(job, trains=True)
        self.next = frozenset()

        def read(values: Values, name: str) -> Evaluated:
            return read_evaluated(values, name, self.scored[name], self.rules)

        yield from self._answers(jobs, EVALUATE, read, {}, further)

    def ask(self, stage: Stage, requests: Mapping[str, Values]) -> Iterator[tuple[str, Values | str]]:
        """Send requests of secure aggregation.

        Args:
            requests: Request to each client, by name.

        Returns:
            Names with answers, or with the reason why there is none.
        """
        staged = {name: {**request, "client": name, "stage": stage} for name, request in requests.items()}
        return self.nodes.ask(staged, SECURE, self.deadline)

    def description(self) -> dict[str, str | int]:
        """Return the facts about the executor for the report."""
        return {"executor": "flower", "nodes": len(set(self.nodes.node_of.values()))}

    def close(self) -> None:
        """Close the store, if the clients are stored at the server; nodes outlive a run."""
        if self.clients.rests_here:
            self.clients.store.close()

    def _job(self, name: str, message: bytes | None, round_number: int, generations: Mapping[str, str]) -> Job:
        after, saved = generations.get(name, ""), self.state.saved.get(name, "")
        content = self.nodes.config, self.summaries[name], message
        return Job(self.run, name, round_number, *content, order=next(self.orders), after=after, saved=saved)

    def _read_trained(self, values: Values, name: str) -> Trained:
        return read_trained(values, name, self.scored[name])

    def _answers(
        self,
        jobs: Sequence[Job],
        kind: str,
        read: Callable[[Values, str], T],
        done: Mapping[str, T | Missing],
        further: Mapping[str, Job],
    ) -> Iterator[T | Missing]:
        """Send jobs; yield each answer in the order of the jobs, as soon as those before it are there.

        Args:
            further: Training jobs to send along; usable answers are kept for the next call of :meth:`train`.
        """
        self.nodes.refresh()
        sent = [job for job in jobs if job.client in self.nodes.node_of and job.client not in done]
        absent = {job.client for job in jobs} - self.nodes.node_of.keys()
        answers: dict[str, T | Missing] = {name: Missing(name, "not connected") for name in absent}
        answers.update(done)
        order = iter(jobs)
        job = next(order, None)
        groups = self._groups(sent, further)
        messages = (
            message([self._pack_job(j).to_values() for j in group], self.nodes.node_of[group[0].client], kind)
            for group in groups
        )
        seconds = self.deadline * (2 if further else 1)
        for number, reply in self.nodes.exchange(enumerate(messages), seconds, self._at_once()):
            for place, sender in enumerate(groups[number]):
                name = sender.client
                if sender.trains:
                    with suppress(Exception):  # the client is asked again, and what is wrong is reported then
                        values = self.nodes.read(reply, name, place)
                        self.early[name] = sender, self._read_trained(values, name), self._left(sender, values)[0]
                    continue
                try:
                    values = self.nodes.read(reply, name, place)
                    result, left = read(values, name), self._left(sender, values)
                except Exception as error:  # no answer of a node may end the run
                    answers[name] = Missing(name, reason_of(error))
                else:
                    self._keep(sender, *left)
                    answers[name] = result
            while job is not None and job.client in answers:
                yield answers.pop(job.client)
                job = next(order, None)
        late = f"no answer within {seconds:g} s" if self.deadline else "could not be sent"
        while job is not None:
            yield answers.pop(job.client, Missing(job.client, late))
            job = next(order, None)

    def _pack_job(self, job: Job) -> Job:
        """Return a job with its client's state, if that is stored at the server."""
        return replace(job, state=pack(self.clients.snapshot(job.client))) if self.clients.rests_here else job

    def _groups(self, jobs: Sequence[Job], further: Mapping[str, Job]) -> list[list[Job]]:
        """Divide jobs into those of one message each: in a simulation, several visits to the same node."""
        most = self._together() if self.clients.rests_here else 1
        by_node: dict[int, list[Job]] = {}
        for job in jobs:
            by_node.setdefault(self.nodes.node_of[job.client], []).append(job)
        groups = [own[start : start + most] for own in by_node.values() for start in range(0, len(own), most)]
        return [[*group, *(further[j.client] for j in group if j.client in further)] for group in groups]

    def _together(self) -> int:
        """Return the maximum number of visits in one message of a simulation."""
        return min(VISITS, max(1, UNDER_WAY // (MESSAGES[0] * self._largest)))

    def _at_once(self) -> int:
        """Return the maximum number of messages without an answer at a time."""
        if not self.clients.rests_here:
            return sys.maxsize
        least, most = MESSAGES
        return min(most, max(least, UNDER_WAY // (self._together() * self._largest)))

    @property
    def _largest(self) -> int:
        """Bytes of the largest model."""
        models = self.clients.models.values()
        sizes = [sum(tensor.nbytes for tensor in model.state_dict().values()) for model in models]
        return int(max(1, *sizes))

    def _left(self, job: Job, values: Values) -> tuple[VisitOutcome, Snapshot | None]:
        """Read the outcome of a visit for its client, with the client's state if it travels and has changed."""
        left = VisitOutcome.of(values)
        if not self.clients.rests_here:
            if left.state is not None:
                raise PayloadError("state: was not requested")
            if job.deliver and not left.generation:
                raise PayloadError("generation: missing")
            return left, None
        if left.generation or left.anew:
            raise PayloadError("generation: the server keeps this client, not the node")
        if not job.deliver:
            return left, None
        snapshot = unpack(left.state or b"")
        if snapshot.model and not _same_form(snapshot.model, self.clients.snapshot(job.client).model):
            raise PayloadError(f"state: does not fit the model of {job.client}")
        return left, snapshot

    def _keep(self, job: Job, left: VisitOutcome, snapshot: Snapshot | None = None) -> None:
        """Record the outcome of a visit for its client."""
        if left.anew:
            self.began_anew(job.client, job.round)
        if left.generation:
            self.state.generations[job.client] = left.generation
        if snapshot is not None:
            self.clients.store.write(job.client, snapshot, model=bool(snapshot.model))


def _same_form(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all((a[n].shape, a[n].dtype) == (b[n].shape, b[n].dtype) for n in a)
