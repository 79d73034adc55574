"""Nodes behind Flower's grid, as an executor: the round loop does not know that its clients are elsewhere."""

from __future__ import annotations

import itertools
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from protofed.errors import FederationError, PayloadError
from protofed.flower.census import Shared
from protofed.flower.messages import Description, Job, Left, Values, read_descriptions, read_evaluated, read_trained
from protofed.training import Evaluated, Messages, Missing, Roster, Trained
from protofed.training.client import pack, unpack

RECORD = "protofed"
QUERY, TRAIN, EVALUATE = "query", "train", "evaluate"
POLL = 0.01, 0.3
"""Least and most seconds between two looks for replies; the longer nothing comes, the more."""
UNDER_WAY = 2**28
"""Bytes of clients' models that are on their way to nodes at a time, in a simulation."""
T = TypeVar("T", Trained, Evaluated)
log = logging.getLogger("protofed")


@dataclass
class Nodes:
    """Who is connected, and whose clients are where.

    Attributes:
        grid: Flower's.
        config: The experiment's configuration, as JSON.
        patience: Seconds to wait for answers to questions.
        node_of: Of each client, the node that holds it.
        descriptions: Of each client.
    """

    grid: Grid
    config: str
    patience: float = 300.0
    node_of: dict[str, int] = field(default_factory=dict)
    descriptions: dict[str, Description] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)

    def refresh(self) -> None:
        """Ask nodes that are new whose data they have; forget where clients of nodes are that have left."""
        online = set(self.grid.get_node_ids())
        self.asked &= online
        self.node_of = {name: node for name, node in self.node_of.items() if node in online}
        new = sorted(online - self.asked)
        if not new:
            return
        questions = [_message({"config": self.config}, node, QUERY) for node in new]
        for number, reply in self.exchange(questions, self.patience):
            node = new[number]
            try:
                found = read_descriptions(_values(reply))
            except PayloadError as error:
                log.warning("node %s: %s", node, error)
                continue
            self.asked.add(node)
            for description in found:
                self._welcome(description, node)

    def exchange(
        self, messages: Iterable[Message], seconds: float, at_once: int = sys.maxsize
    ) -> Iterator[tuple[int, Message]]:
        """Send messages; yield the number of each with its reply, as they come.

        Args:
            messages: At most one for each client.
            seconds: How long to wait; 0 for as long as it takes. Flower answers for nodes that are gone.
            at_once: How many messages wait for their replies at a time.
        """
        numbered = enumerate(messages)
        waiting: dict[str, int] = {}
        end = time.monotonic() + seconds if seconds else float("inf")
        pause = POLL[0]
        while True:
            batch = list(itertools.islice(numbered, at_once - len(waiting)))
            # What a reply belongs to is known from Flower's own numbers, not from what its sender says.
            pushed = set(self.grid.push_messages([m for _, m in batch])) if batch else set()
            waiting |= {m.metadata.message_id: n for n, m in batch if m.metadata.message_id in pushed}
            if not waiting:
                return
            for reply in self.grid.pull_messages(list(waiting)):
                number = waiting.pop(reply.metadata.reply_to_message_id, None)
                if number is not None:
                    pause = POLL[0] / 2
                    yield number, reply
            if time.monotonic() > end:
                return
            if waiting:
                pause = min(2 * pause, POLL[1])
                time.sleep(pause)

    def wait(self, number: int, seconds: float) -> None:
        """Wait until ``number`` clients are there.

        Raises:
            FederationError: If they are not there in time.
        """
        end = time.monotonic() + seconds
        self.refresh()
        while len(self.node_of) < number:
            if time.monotonic() > end:
                raise FederationError(
                    f"{len(self.node_of)} clients connected within {seconds:g} s, {number} are needed: "
                    f"{', '.join(sorted(self.node_of)) or 'none'}"
                )
            time.sleep(1.0)
            self.refresh()

    def settle(self, seconds: float = 3.0) -> None:
        """Wait until nobody new has come for some seconds."""
        while True:
            before = set(self.node_of)
            time.sleep(seconds)
            self.refresh()
            if set(self.node_of) <= before:
                return

    def _welcome(self, description: Description, node: int) -> None:
        name = description.name
        if self.node_of.get(name, node) != node:
            log.warning("node %s: client %s is at node %s already", node, name, self.node_of[name])
            return
        self.node_of[name] = node
        self.descriptions.setdefault(name, description)


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
        rules: tuple[str, ...],
        deadline: float,
        began_anew: Callable[[str, int], None],
    ) -> None:
        self.nodes = nodes
        self.run = run
        self.orders = itertools.count(order)
        self.clients = clients
        self.shared = {name: s.to_json() for name, s in shared.items()}
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
            return read_trained(values, name, len(self.clients.members[name].train))

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
            return read_evaluated(values, self.nodes.descriptions[name], self.rules)

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
        messages = (_message(self._packed(j).to_values(), self.nodes.node_of[j.client], kind) for j in there)
        for number, reply in self.nodes.exchange(messages, self.deadline, self._at_once()):
            name = there[number].client
            try:
                values = _values(reply)
                left = Left.of(values)
                found[name] = read(values, name)
                self._leave(there[number], left)
            except PayloadError as error:
                found[name] = Missing(name, str(error))
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
        return max(16, UNDER_WAY // max(1, largest))

    def _leave(self, job: Job, left: Left) -> None:
        """Take note of what a visit left of its client.

        Raises:
            PayloadError: If it does not say, or the client does not fit its model any more.
        """
        name = job.client
        if name not in self.clients.here:
            if job.deliver and not left.generation:
                raise PayloadError("generation: missing")
            if left.anew:
                self.began_anew(name, job.round)
            if left.generation:
                self.clients.generations[name] = left.generation
        elif job.deliver:
            parked = unpack(left.state or b"")
            if parked.model and not _same_form(parked.model, self.clients.parked(name).model):
                raise PayloadError(f"state: does not fit the model of {name}")
            self.clients.store.write(name, parked, model=bool(parked.model))


def _same_form(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all((a[n].shape, a[n].dtype) == (b[n].shape, b[n].dtype) for n in a)


def _message(values: Values, node: int, kind: str) -> Message:
    content: dict[str, Any] = {RECORD: ConfigRecord(values)}
    return Message(RecordDict(content), dst_node_id=node, message_type=kind)


def _whole(reply: Message) -> bool:
    return reply.has_content() and isinstance(reply.content.get(RECORD), ConfigRecord)


def _values(reply: Message) -> Values:
    """Return what a reply says.

    Raises:
        PayloadError: If it is an error, of Flower or of the node.
    """
    if reply.has_error():
        reason = " ".join(str(reply.error.reason).split()) or "no reason given"
        raise PayloadError(f"node: {reason[:200]} (Flower's error {reply.error.code})")
    if not _whole(reply):
        raise PayloadError("message: not an answer of protofed")
    values = dict(reply.content[RECORD])
    if "error" in values:
        raise PayloadError(f"node: {' '.join(str(values['error']).split())[:300]}")
    return values
