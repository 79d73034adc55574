"""Nodes behind Flower's grid, as an executor: the round loop does not know that its clients are elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from protofed.errors import FederationError, PayloadError
from protofed.flower.census import Shared
from protofed.flower.messages import Description, Job, Values, read_descriptions, read_evaluated, read_trained
from protofed.training import Evaluated, Messages, Missing, Roster, Trained

RECORD = "protofed"
QUERY, TRAIN, EVALUATE = "query", "train", "evaluate"
STATES = "nodes"
"""In the run directory of a simulation, while it runs: what deployed nodes keep themselves."""
POLL = 0.3
"""Seconds between two looks for replies."""
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

    def exchange(self, messages: Sequence[Message], seconds: float) -> Iterator[tuple[int, Message]]:
        """Send messages; yield the number of each in the list with its reply, as they come.

        Args:
            messages: At most one for each client.
            seconds: How long to wait; 0 for as long as it takes. Flower answers for nodes that are gone.
        """
        # What a reply belongs to is known from Flower's own numbers, not from what its sender says.
        pushed = set(self.grid.push_messages(messages)) if messages else set()
        waiting = {m.metadata.message_id: number for number, m in enumerate(messages)}
        waiting = {key: number for key, number in waiting.items() if key in pushed}
        end = time.monotonic() + seconds if seconds else float("inf")
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                number = waiting.pop(reply.metadata.reply_to_message_id, None)
                if number is not None:
                    yield number, reply
            if not waiting or time.monotonic() > end:
                return
            time.sleep(POLL)

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

    Args:
        nodes: Who is connected.
        run: Identifies the run.
        home: The run directory.
        clients: As the server knows them.
        shared: What each client is told of the federation.
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
        rules: tuple[str, ...],
        deadline: float,
    ) -> None:
        self.nodes = nodes
        self.run = run
        self.home = str(home.resolve())
        self.clients = clients
        self.shared = {name: s.to_json() for name, s in shared.items()}
        self.rules = rules
        self.deadline = deadline

    def train(self, names: Iterable[str], messages: Messages, round: int) -> Iterator[Trained | Missing]:
        """Train the named clients, wherever they are."""
        jobs = [self._job(name, messages[name], round) for name in names]

        def read(values: Values, name: str) -> Trained:
            return read_trained(values, name, len(self.clients.members[name].train))

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
            return read_evaluated(values, self.nodes.descriptions[name], self.rules)

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
        messages = [_message(job.to_values(), self.nodes.node_of[job.client], kind) for job in there]
        for number, reply in self.nodes.exchange(messages, self.deadline):
            name = there[number].client
            try:
                found[name] = read(_values(reply), name)
            except PayloadError as error:
                found[name] = Missing(name, str(error))
            while job is not None and job.client in found:
                yield found.pop(job.client)
                job = next(order, None)
        late = f"no answer within {self.deadline:g} s" if self.deadline else "could not be sent"
        while job is not None:
            yield found.pop(job.client, Missing(job.client, late))
            job = next(order, None)


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
