"""The round loop: broadcasts, local training, stages, aggregation, evaluation.

Uploads stream through generators, from the clients through every stage to the method: one is held at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from protofed.errors import DivergedError, FederationError
from protofed.methods.contract import Method, Tensors, Upload
from protofed.rounds.evaluation import Evaluation
from protofed.rounds.participation import Participation
from protofed.rounds.stage import Opened, Receiving, Stage
from protofed.rounds.state import ServerState, unsound
from protofed.runs.findings import Findings
from protofed.runs.records import RoundRecord
from protofed.visits.contract import Executor, Missing, Trained
from protofed.wire.codec import Codec


@dataclass
class Federation:
    """A server and its clients; ``participation`` selects the clients of each round."""

    method: Method
    codec: Codec
    executor: Executor
    participation: Participation
    evaluation: Evaluation
    stages: Sequence[Stage]
    state: ServerState = field(default_factory=ServerState)

    def __post_init__(self) -> None:
        members = self.executor.clients.items()
        self.method.check({name: bool(member.validation) for name, member in members})
        participants = self.participation.number_of(self.participation.able)
        for stage in self.stages:
            stage.check(participants)
        if not self.state.round:
            self.state.tensors = self.method.server_state()

    @property
    def names(self) -> list[str]:
        """Names of all clients."""
        return self.participation.names

    @property
    def rounds(self) -> int:
        """Number of rounds to run."""
        return self.participation.rounds

    @property
    def seed(self) -> int:
        """Seed of the experiment."""
        return self.participation.seed

    @property
    def server(self) -> Tensors:
        """The method's server state."""
        return self.state.tensors

    @property
    def round(self) -> int:
        """Rounds completed."""
        return self.state.round

    @property
    def exhausted(self) -> bool:
        """Return whether a stage does not afford another round."""
        return self.round < self.rounds and not all(stage.affords(self.round + 1) for stage in self.stages)

    def run(self) -> Iterator[RoundRecord]:
        """Run the remaining rounds, as far as the stages afford them, and yield a record after each."""
        while self.round < self.rounds and not self.exhausted:
            yield self._round(self.round + 1)

    def _round(self, round_number: int) -> RoundRecord:
        record = RoundRecord(round_number, self.participants(round_number))
        with record.timed("total"):
            self._begin(round_number)
            while not self._attempt(round_number, record):
                if record.attempts == self.participation.options.attempts or self.executor.clients.rests_here:
                    raise FederationError(self.participation.lacking(record))
                record.attempts += 1
            self.state.round = round_number
            self.state.standing.note(record, self.names)
            if round_number % self.evaluation.options.every == 0 or round_number == self.rounds or self.exhausted:
                if self._combines(round_number):
                    self._begin(round_number + 1)
                    self.executor.announce(self.participants(round_number + 1))
                with record.timed("evaluation"):
                    self._evaluate(record)
        return record

    def participants(self, round_number: int) -> list[str]:
        """Return the clients that train in ``round``, in their fixed order."""
        return self.participation.draw(round_number, self.state.standing)

    def _begin(self, round_number: int) -> None:
        for stage in self.stages:
            stage.begin(round_number)

    def _account(self, record: RoundRecord) -> None:
        for stage in self.stages:
            stage.account(record)

    def _attempt(self, round_number: int, record: RoundRecord) -> bool:
        """Train and aggregate; over a network, leave the state unchanged if too few results were usable.

        A repeated attempt is safe only there: nodes answer a repeated request with the result they already have,
        whereas clients of this process would train once more.
        """
        trained = list[Trained]()
        opened = self.open(record.participants, round_number, record)
        record.robust = Findings()
        self._account(record)
        with record.timed("aggregation"):
            results = record.awaited(self.executor.train(record.participants, opened.messages, round_number))
            uploads: Iterator[Any] = self._arrived(results, trained, record)
            state, diagnostics = self.server, dict[str, Any]()
            if self.participation.sends(round_number):
                for stage in self.stages:
                    uploads = stage(uploads, opened, record)
                if some := _unless_empty(uploads):
                    state, diagnostics = self.method.aggregate(self.server, some, round_number)
                unread = sum(1 for _ in uploads)
                assert not unread, f"{self.method.name} left uploads unread"
            else:
                opened.usable = sum(1 for _ in uploads)
            record.set_losses(trained)
        least = min(self.participation.options.min_clients, len(record.participants))
        if opened.usable < least and self.executor.remote:
            return False
        for stage in self.stages:
            stage.end(round_number)
        if reason := unsound(self.method, self.codec, state, round_number):
            record.robust.kept = f"clients would have refused the new one ({reason})"
        else:
            self.state.tensors, record.diagnostics = state, diagnostics
        return True

    def open(self, names: Sequence[str], round_number: int, record: RoundRecord | None = None) -> Opened:
        """Encode the broadcasts of a round, and count their traffic if there is a record."""
        return Opened.of(self.method, self.codec, self.server, round_number, names, record)

    def _arrived(
        self, results: Iterator[Trained | Missing], trained: list[Trained], record: RoundRecord
    ) -> Iterator[Trained]:
        """Yield the results of clients that were trained; the others are recorded."""
        for result in results:
            if isinstance(result, Missing):
                record.lose(result.client, result.reason, "training")
                continue
            trained.append(replace(result, message=None))  # of many clients, they are gigabytes
            if result.failure:
                record.refuse(result.client, DivergedError(result.failure))
            yield result

    def exchange(self, names: Sequence[str], round_number: int) -> list[Upload]:
        """Train clients and return what the server receives of them, without aggregating it."""
        opened, record = self.open(names, round_number), RoundRecord(round_number, list(names))
        results = self._arrived(self.executor.train(names, opened.messages, round_number), [], record)
        return list(Receiving(self.method, self.codec)(results, opened, record))

    def _evaluate(self, record: RoundRecord) -> None:
        names = self.participation.here(record.round)
        messages = self.open(names, record.round + 1).messages if self.evaluation.delivers else None
        results = self.evaluation.score(self.executor, messages, self.participation, record)
        for stage in self.stages:
            stage.scored(results, names, record)

    def _combines(self, round_number: int) -> bool:
        """Return whether clients may train for the next round as soon as they have been scored in ``round``."""
        o = self.participation.options
        certain = round_number < self.rounds and not self.evaluation.options.patience and not self.exhausted
        certain = certain and o.sampling != "poisson"  # secret coins would fall anew in the round itself
        return o.combine and self.evaluation.delivers and certain

    def keep(self, directory: Path, rounds: Sequence[RoundRecord]) -> None:
        """Keep a deployment's memory in its run directory, and account for rounds that a killed server lost."""
        for stage in self.stages if self.participation.secret else ():
            stage.keep(directory, self.round)
        if self.participation.secret and self.exhausted and rounds:
            self._account(rounds[-1])  # no round follows whose record would count those that were lost


def _unless_empty(uploads: Iterator[Upload]) -> Iterator[Upload] | None:
    """Return an iterator over the same uploads, or None if there are none; keep no upload."""
    for first in uploads:
        return itertools.chain((first,), uploads)
    return None
