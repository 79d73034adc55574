"""The round loop: who takes part, what is sent, what comes back, how good it is."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from protofed.errors import ConfigError, PayloadError
from protofed.federation.records import Accuracy, RoundRecord
from protofed.methods.contract import Method, Tensors, Upload
from protofed.options import option
from protofed.seeding import generator
from protofed.training import Executor, Messages, Trained
from protofed.wire import Codec, cast


@dataclass(frozen=True)
class ParticipationOptions:
    """Who takes part in a round."""

    fraction: float = option(1.0, "share of the clients that train in each round, drawn anew")

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction must lie in (0, 1], not {self.fraction}")


@dataclass(frozen=True)
class EvaluationOptions:
    """When clients are scored."""

    every: int = option(1, "rounds between evaluations; the last round is always evaluated")
    at: Literal["broadcast", "trained"] = option(
        "broadcast", "score clients after they received the new broadcast, or as they were trained"
    )

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every must be at least 1, not {self.every}")


@dataclass
class Federation:
    """A server and its clients.

    Attributes:
        method: The algorithm.
        codec: How messages are encoded.
        executor: Runs the clients.
        rounds: How many rounds to run.
        seed: The experiment's seed.
        participation: Who takes part.
        evaluation: When clients are scored.
        server: The server's state.
        round: Rounds done so far.
    """

    method: Method
    codec: Codec
    executor: Executor
    rounds: int
    seed: int
    participation: ParticipationOptions = field(default_factory=ParticipationOptions)
    evaluation: EvaluationOptions = field(default_factory=EvaluationOptions)
    server: Tensors = field(default_factory=dict)
    round: int = 0

    def __post_init__(self) -> None:
        self.names = list(self.executor.clients)
        if not self.names:
            raise ConfigError("the federation has no clients")
        self.trainable = [n for n in self.names if len(self.executor.clients.members[n].train)]
        if not self.trainable:
            raise ConfigError("no client has training samples")
        if not self.round:
            self.server = self.method.server_state()

    def run(self) -> Iterator[RoundRecord]:
        """Run the rounds that are left, yielding a record after each."""
        while self.round < self.rounds:
            yield self._round(self.round + 1)

    def participants(self, round: int) -> list[str]:
        """Return the clients that train in ``round``, in their fixed order."""
        number = max(1, int(self.participation.fraction * len(self.trainable) + 0.5))
        if number >= len(self.trainable):
            return self.trainable
        order = torch.randperm(len(self.trainable), generator=generator(self.seed, "participation", round))
        return [self.trainable[i] for i in sorted(order[:number].tolist())]

    def _round(self, round: int) -> RoundRecord:
        start = time.perf_counter()
        names = self.participants(round)
        record = RoundRecord(round, names)
        messages = self._messages(names, round, record)
        self.server, record.diagnostics = self._aggregate(names, messages, round, record)
        self.round = round
        if round % self.evaluation.every == 0 or round == self.rounds:
            self._evaluate(round, record)
        record.seconds["total"] = time.perf_counter() - start
        return record

    def _messages(self, names: Sequence[str], round: int, record: RoundRecord | None = None) -> Messages:
        """Encode the broadcast for ``names``; count it where it opens a round."""
        schema = self.method.broadcast_schema
        if schema is None:
            return dict.fromkeys(names)
        messages: dict[str, bytes | None] = {}
        shared: tuple[bytes, int] | None = None
        for name in names:
            encoded = shared
            if encoded is None:
                personal = self.method.personal_broadcast
                payload = self.method.broadcast(self.server, round, name if personal else None)
                if payload is None:
                    messages[name] = None
                    continue
                encoded = self.codec.encode(payload, schema), schema.parameters(payload)
                shared = None if personal else encoded
            messages[name] = encoded[0]
            if record is not None:
                record.add_traffic("down", len(encoded[0]), encoded[1])
        return messages

    def _aggregate(
        self, names: Sequence[str], messages: Messages, round: int, record: RoundRecord
    ) -> tuple[Tensors, dict[str, Any]]:
        """Train clients and aggregate their uploads as they arrive."""
        start = time.perf_counter()
        waiting = _Clock()
        trained: list[Trained] = []
        results = self.executor.train(names, messages, round)
        uploads = self._uploads(waiting.timed(results), trained, record)
        if self.method.communicates(round):
            state, diagnostics = self.method.aggregate(self.server, uploads, round)
            uploads_left = sum(1 for _ in uploads)
            assert not uploads_left, f"{self.method.name} left uploads unread"
        else:
            for _ in uploads:
                pass
            state, diagnostics = self.server, {}
        record.set_losses(trained)
        record.seconds["training"] = waiting.seconds
        record.seconds["aggregation"] = time.perf_counter() - start - waiting.seconds
        return state, diagnostics

    def _uploads(self, results: Iterator[Trained], trained: list[Trained], record: RoundRecord) -> Iterator[Upload]:
        """Decode and validate uploads one by one; a refused one is recorded and left out."""
        schema = self.method.upload_schema
        for result in results:
            trained.append(result)
            if result.message is None or schema is None:
                continue
            record.add_traffic("up", len(result.message), result.parameters)
            try:
                payload = cast(self.codec.decode(result.message, schema), self.method.task.dtype)
            except PayloadError as error:
                record.refuse(result.client, str(error))
                continue
            yield Upload(result.client, payload)

    def _evaluate(self, round: int, record: RoundRecord) -> None:
        start = time.perf_counter()
        delivered = self.evaluation.at == "broadcast"
        messages = self._messages(self.names, round + 1) if delivered else None
        results = list(self.executor.evaluate(self.names, messages, round))
        record.accuracy = Accuracy.of([(r.correct, r.samples) for r in results], self.method.rules)
        if any(r.validation[1] for r in results):
            record.validation = Accuracy.of([r.validation for r in results], self.method.rules)
        record.seconds["evaluation"] = time.perf_counter() - start


class _Clock:
    """Adds up the time spent waiting for an iterator."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, items: Iterator[Trained]) -> Iterator[Trained]:
        while True:
            start = time.perf_counter()
            item = next(items, None)
            self.seconds += time.perf_counter() - start
            if item is None:
                return
            yield item
