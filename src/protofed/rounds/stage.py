"""Stages: what happens to the uploads of a round between the clients and a method's ``aggregate``.

The loop passes uploads through a list of stages, in order, and knows none of them by type. A method never hears of
them. Attacks of a simulation, robust rules, differential privacy and secure aggregation are stages, and so is a
class of the user's, which ``stages = ["my_stage.py:MyStage"]`` names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from protofed.errors import PayloadError
from protofed.methods.contract import Method, Tensors, Upload
from protofed.runs.records import RoundRecord
from protofed.visits.contract import Evaluated, Messages, Trained
from protofed.wire.codec import Codec, cast
from protofed.wire.schema import Payload, Schema


@dataclass
class Opened:
    """A round whose participants have been sent their broadcasts."""

    round: int
    messages: Messages
    payload: Payload | None
    usable: int = 0  # clients whose uploads could be used so far

    @classmethod
    def of(
        cls,
        method: Method,
        codec: Codec,
        server: Tensors,
        round_number: int,
        names: Sequence[str],
        record: RoundRecord | None = None,
    ) -> Opened:
        """Encode the broadcasts of a round, and count their traffic if there is a record.

        What is the same for all is there even if nobody takes part: stages count changes from it.
        """
        schema = method.broadcast_schema
        if schema is None:
            return cls(round_number, dict.fromkeys(names), None)
        common = (
            None if method.declared.personal else _encode(method.broadcast(server, round_number), codec, schema)
        )
        messages: dict[str, bytes | None] = {}
        for name in names:
            own = common or _encode(method.broadcast(server, round_number, name), codec, schema)
            messages[name] = own.message
            if record is not None and own.message is not None:
                record.add_traffic("down", len(own.message), own.numbers)
        return cls(round_number, messages, common.payload if common else None)


class _Encoded(NamedTuple):
    """A broadcast, its message, and how many numbers it has; none of these before there is anything to send."""

    payload: Payload | None = None
    message: bytes | None = None
    numbers: int = 0


def _encode(payload: Payload | None, codec: Codec, schema: Schema) -> _Encoded:
    if payload is None:
        return _Encoded()
    return _Encoded(payload, codec.encode(payload, schema), schema.parameters(payload))


class Stage:
    """Base of all stages; it changes nothing and has no objections."""

    #: From whom single uploads are hidden: nobody (``""``), whoever sees what the server publishes (``"outside"``),
    #: or the server as well (``"server"``).
    hides: ClassVar[Literal["", "outside", "server"]] = ""

    def check(self, participants: int) -> None:
        """Check before training that rounds can work."""

    def affords(self, round_number: int) -> bool:
        """Return whether all rounds up to ``round`` may be run."""
        return True

    def note(self) -> Sequence[str]:
        """Return sentences for a report."""
        return ()

    def begin(self, round_number: int) -> None:
        """Take note that clients may begin to train for a round."""

    def account(self, record: RoundRecord) -> None:
        """Write into the record of a round what it costs, together with those before."""

    def __call__(self, uploads: Iterator[Any], opened: Opened, record: RoundRecord) -> Iterator[Any]:
        """Return the uploads that the next stage receives.

        Args:
            uploads: :class:`~protofed.methods.contract.Upload`; before the server has decoded them,
                :class:`~protofed.visits.contract.Trained`. Consumed once, and as they arrive if that is possible.
        """
        return uploads

    def end(self, round_number: int) -> None:
        """Take note that the uploads of a round have been aggregated."""

    def scored(self, results: Sequence[Evaluated], names: Sequence[str], record: RoundRecord) -> None:
        """Add to the record of a round what follows from the clients' scores."""

    def keep(self, directory: Path, round_number: int) -> None:
        """Remember in a deployment's run directory what must not be forgotten when a server is restarted."""

    def shown(self, uploads: Sequence[Upload], opened: Opened, seed: int | None) -> Sequence[Upload]:
        """Return uploads as observers see them from whom single ones are hidden; no noise without ``seed``."""
        return uploads


class Receiving(Stage):
    """Decodes and validates uploads one by one; refused ones are recorded and left out."""

    def __init__(self, method: Method, codec: Codec) -> None:
        self.method, self.codec = method, codec

    def __call__(self, uploads: Iterator[Trained], opened: Opened, record: RoundRecord) -> Iterator[Upload]:
        """Yield the uploads of the results that hold one."""
        schema, dtype = self.method.upload_schema, self.method.task.dtype
        assert schema is not None
        for result in uploads:
            if result.message is None:
                continue
            try:
                payload = cast(self.codec.decode(result.message, schema), dtype)
            except PayloadError as error:
                record.add_traffic("up", len(result.message), 0)
                record.refuse(result.client, error)
                continue
            record.add_traffic("up", len(result.message), schema.parameters(payload))
            opened.usable += 1
            yield Upload(result.client, payload)
