"""The executor of a deployment whose rounds end before all clients have answered."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from flwr.app import Message

from protofed.engine import Evaluated, Messages, Missing, Trained
from protofed_flower.grid import GridExecutor
from protofed_flower.messages import Job
from protofed_flower.nodes import TRAIN, message, reason_of


class LateExecutor(GridExecutor):
    """Executor whose rounds end with ``after`` answers; later ones come in the round in which they arrive.

    The state of the server holds the open requests, so that a restarted server sends them again; a node that has
    carried one out answers it without training twice (:meth:`~protofed_flower.node.Node.train`).

    Args:
        rounds: The last one waits for all clients.
    """

    def __init__(self, *args: Any, after: int, rounds: int) -> None:
        super().__init__(*args)
        self.after, self.rounds = after, rounds
        self.waiting: dict[str, Job] = {}
        self.taken: dict[str, Trained | Missing] = {}

    def train(self, names: Iterable[str], messages: Messages, round_number: int) -> Iterator[Trained | Missing]:
        """Ask the clients that have no open request; yield the answers of this round, late ones among them."""
        wanted, state = list(names), self.state
        if round_number != self.round:  # a repeated round has the answers that it had, and waits for more
            self.round, self.taken = round_number, {}
        self.nodes.refresh()
        for name in wanted:
            if name in self.nodes.node_of and name not in state.asked and name not in self.taken:
                state.asked[name] = round_number
                state.sent[round_number] = messages[name]
        reasons = {n: "has not answered yet" if n in self.nodes.node_of else "not connected" for n in wanted}
        reasons |= {
            name: f"still trains for round {asked}" for name, asked in state.asked.items() if asked < round_number
        }
        goal = max(self.after, len(self.taken) + 1)

        def enough() -> bool:
            return round_number < self.rounds and len(self.taken) >= goal

        open_ = {job.client for job in self.waiting.values()}
        again = [n for n in self.clients if n in state.asked and n not in open_ and n in self.nodes.node_of]
        jobs = [self._job(n, state.sent[state.asked[n]], state.asked[n], state.generations) for n in again]
        sent = ((job, message(job.to_values(), self.nodes.node_of[job.client], TRAIN)) for job in jobs)
        for job, reply in self.nodes.exchange(sent, self.deadline, waiting=self.waiting, enough=enough):
            self._take(job, reply, round_number, reasons)
        state.sent = {asked: sent for asked, sent in state.sent.items() if asked in state.asked.values()}
        absent = set(wanted) - set(self.taken)
        for name in self.clients:
            if name in self.taken:
                yield self.taken[name]
            elif name in absent:
                yield Missing(name, reasons[name])

    def evaluate(
        self, names: Iterable[str], messages: Messages | None, round_number: int
    ) -> Iterator[Evaluated | Missing]:
        """Evaluate the clients that have no open request."""
        wanted, asked = list(names), dict(self.state.asked)
        results = super().evaluate([name for name in wanted if name not in asked], messages, round_number)
        for name in wanted:
            yield Missing(name, f"still trains for round {asked[name]}") if name in asked else next(results)

    def _take(self, job: Job, reply: Message, round_number: int, reasons: dict[str, str]) -> None:
        """Close a request with its answer; one without a usable answer stays open, and is sent again."""
        name = job.client
        try:
            values = self.nodes.read(reply, name)
            result, left = self._read_trained(values, name), self._left(job, values)
        except Exception as error:  # no answer of a node may end the run
            reasons[name] = reason_of(error)
            return
        self._keep(job, *left)
        del self.state.asked[name]
        self.taken[name] = replace(result, late=round_number - job.round)
