"""Rounds that do not wait for all clients: late answers, their weight, and the repetition of who answered when.

A client has at most one open request. Its answer counts once, in the round in which it arrives, and until then the
client is asked for nothing else. Who answered in a round stands in its record (:attr:`RoundRecord.answers`), so
that another engine can repeat the course of a run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import Struct
from torch import Tensor

from protofed.errors import CheckpointError, ConfigError
from protofed.methods.contract import Method, Upload
from protofed.rounds.options import ParticipationOptions
from protofed.rounds.stage import Opened, Stage
from protofed.rounds.state import ServerState
from protofed.runs.files import read_lines
from protofed.runs.records import Absence, RoundRecord
from protofed.untrusted import claims
from protofed.untrusted.decoding import Ordinal
from protofed.visits.contract import Evaluated, Executor, Messages, Missing, Trained
from protofed.wire.schema import Payload, Schema


class Mixing(Stage):
    """Mixes uploads that are ``s`` rounds late with the present broadcast ``b``: ``b + (1 + s)^(-a)·(u - b)``.

    Xie, Koyejo and Gupta, "Asynchronous Federated Optimization" (FedAsync), arXiv 1903.03934, Section 5.2, with
    ``α = 1``; the mean of several is that of Nguyen et al. (FedBuff), arXiv 2106.06639. Rows of classes that the
    broadcast does not have stay as they are.
    """

    def __init__(self, method: Method, options: ParticipationOptions) -> None:
        up, down = method.upload_schema, method.broadcast_schema
        if up is None or method.declared.aggregation != "mean" or not _fits(up, down):
            raise ConfigError(
                f"participation.after: a late upload cannot be mixed with a later broadcast of {method.name}, "
                "which is not a mean of such uploads: leave it at 0"
            )
        self.fields = [name for name, field in up.fields.items() if field.kind == "real"]
        self.labels = next((name for name, field in up.fields.items() if field.kind == "label"), "")
        self.schema = up
        self.exponent = options.staleness

    def __call__(self, uploads: Iterator[Upload], opened: Opened, record: RoundRecord) -> Iterator[Upload]:
        """Yield the uploads, those of earlier rounds mixed with the broadcast of this one."""
        for upload in uploads:
            late = record.round - (record.answers or {}).get(upload.client, record.round)
            if late and opened.payload is not None:
                upload = upload._replace(payload=self.mix(upload.payload, opened.payload, late))
            yield upload

    def mix(self, payload: Payload, broadcast: Payload, late: int) -> Payload:
        """Return the content of an upload that is ``late`` rounds late."""
        weight, changed = (1 + late) ** -self.exponent, dict(payload)
        for name in self.fields:
            by_class = self.labels and self.schema.fields[name].shape[:1] == self.schema.fields[self.labels].shape
            theirs = broadcast[name].to(payload[name].dtype)
            present = _rows(payload, broadcast, self.labels, theirs, name) if by_class else theirs
            changed[name] = present + weight * (payload[name] - present)
        return changed


def _fits(up: Schema, down: Schema | None) -> bool:
    """Return whether a broadcast has every real field of an upload, in the same form."""
    fields = {} if down is None else down.fields
    return all(
        name in fields and fields[name].shape == field.shape and not field.sums
        for name, field in up.fields.items()
        if field.kind == "real"
    )


def _rows(payload: Payload, broadcast: Payload, labels: str, theirs: Tensor, name: str) -> Tensor:
    """Return the broadcast's rows of the classes in an upload, and the upload's own where it has none."""
    present = payload[name].clone()
    same = payload[labels].unsqueeze(1) == broadcast[labels].unsqueeze(0)
    mine, place = same.nonzero(as_tuple=True)
    return present.index_copy(0, mine, theirs[place])


class Turn(Struct):
    """What a line of ``rounds.jsonl`` says of who answered."""

    round: Ordinal
    participants: list[str]
    #: The round for which each client was asked that answered; None if all participants did at once.
    answers: dict[str, Ordinal] | None = None
    missing: list[Absence] = []

    @property
    def answered(self) -> dict[str, int]:
        """The round for which each client was asked that answered."""
        return dict.fromkeys(self.participants, self.round) if self.answers is None else self.answers

    @property
    def unscored(self) -> set[str]:
        """Clients that were not scored."""
        return {absence.client for absence in self.missing if absence.phase == "evaluation"}


@dataclass(frozen=True)
class Trace:
    """The course of a run: who answered in which round."""

    path: Path
    turns: Mapping[int, Turn]

    @classmethod
    def read(cls, path: Path, rounds: int, names: Iterable[str]) -> Trace:
        """Read a run directory, or a file with lines as in its ``rounds.jsonl``.

        Args:
            rounds: The number of rounds that it must have.
            names: All clients.
        """
        path = path / "rounds.jsonl" if path.is_dir() else path
        turns = {turn.round: turn for turn in read_lines(path, Turn)}
        known, last = set(names), dict[str, int]()
        for round_number in range(1, rounds + 1):
            if round_number not in turns:
                raise CheckpointError(
                    f"{path}: lacks round {round_number}: participation.trace needs all {rounds} rounds"
                )
            for name, asked in turns[round_number].answered.items():
                who = claims.clean(name, 80)
                if name not in known:
                    raise CheckpointError(f"{path}: round {round_number}: {who} is not among the clients")
                if not last.get(name, 0) < asked <= round_number:
                    raise CheckpointError(
                        f"{path}: round {round_number}: {who} answers for round {asked}, which is to come or is "
                        "answered already"
                    )
                last[name] = asked
        return cls(path, turns)

    def later(self, round_number: int) -> set[int]:
        """Return the rounds up to ``round`` for which a client still answers after it."""
        turns = [turn for turn in self.turns.values() if turn.round > round_number]
        return {asked for turn in turns for asked in turn.answered.values() if asked <= round_number}


class Replayed(Executor):
    """Executor in whose rounds those clients answer that did in a trace.

    A late client is trained when its answer is due, from the broadcast of the round for which it was asked.
    """

    remote = False

    def __init__(self, executor: Executor, trace: Trace, state: ServerState) -> None:
        self.executor, self.trace, self.state = executor, trace, state
        self.clients = executor.clients

    def train(self, names: Iterable[str], messages: Messages, round_number: int) -> Iterator[Trained | Missing]:
        """Train the clients whose answers are due, and name the others."""
        wanted, turn, sent = list(names), self.trace.turns[round_number], self.state.sent
        if wanted != turn.participants:
            raise CheckpointError(
                f"{self.trace.path}: round {round_number}: other participants than those drawn here "
                f"({', '.join(wanted[:5])}): participation.trace needs the options of its run"
            )
        sent[round_number] = next(iter(messages.values()), None)
        results: dict[str, Trained | Missing] = {}
        for asked in sorted(set(turn.answered.values())):
            due = [name for name in self.clients if turn.answered.get(name) == asked]
            if asked not in sent:
                raise CheckpointError(
                    f"{self.trace.path}: round {round_number}: answers for round {asked}, not asked then"
                )
            for result in self.executor.train(due, dict.fromkeys(due, sent[asked]), asked):
                results[result.client] = (
                    replace(result, late=round_number - asked) if isinstance(result, Trained) else result
                )
        later = self.trace.later(round_number)
        self.state.sent = {asked: message for asked, message in sent.items() if asked in later}
        absent = set(wanted) - set(results)
        for name in self.clients:
            if name in results:
                yield results[name]
            elif name in absent:
                yield Missing(name, "has not answered yet")

    def evaluate(
        self, names: Iterable[str], messages: Messages | None, round_number: int
    ) -> Iterator[Evaluated | Missing]:
        """Evaluate the clients that were scored."""
        wanted, unscored = list(names), self.trace.turns[round_number].unscored
        results = self.executor.evaluate([name for name in wanted if name not in unscored], messages, round_number)
        for name in wanted:
            yield Missing(name, "was not scored in the trace") if name in unscored else next(results)

    def description(self) -> dict[str, str | int]:
        """Return the facts about the executor that does the work."""
        return self.executor.description()

    def close(self) -> None:
        """Close that executor."""
        self.executor.close()
