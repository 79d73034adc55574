"""The stage of secure aggregation in the round loop: single uploads go in, uploads that are all alike come out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from protofed.errors import ConfigError, PayloadError
from protofed.methods.contract import Method, Upload
from protofed.privacy.secure_options import SecureOptions
from protofed.privacy.secure_sums import SumLayout, Vector
from protofed.runs import RoundRecord
from protofed.wire import Codec, cast
from protofed.wire.schema import Payload

if TYPE_CHECKING:
    from protofed.privacy.secure_protocol import Ask, Stage, Values

FEWEST = 3
"""Clients in a round; of the sum of two, each knows the other's part."""


class SecureSum:
    """Secure aggregation of the uploads of every round.

    Args:
        options: The threshold and the fixed point.
        method: The method.
        codec: Encoding of uploads.
        ask: Asks clients that hold their own uploads; None for those of this process, which are made here.

    Raises:
        ConfigError: If the method needs more than sums.
    """

    def __init__(self, options: SecureOptions, method: Method, codec: Codec, ask: Ask | None = None) -> None:
        self.options, self.method, self.codec, self.ask = options, method, codec, ask
        self.layout = SumLayout(method, options.fraction_bits)

    def check(self, participants: int, robust_rule: str) -> None:
        """Check that a round can be aggregated, before any training.

        Args:
            participants: Number of clients in a round.
            robust_rule: The option ``robust.rule``.

        Raises:
            ConfigError: If it cannot.
        """
        if self.method.upload_schema is None:
            return
        if robust_rule != "none":
            raise ConfigError(
                f"robust.rule={robust_rule} compares single uploads, which secure.aggregation hides: set "
                "robust.rule=none or secure.aggregation=false"
            )
        try:
            import protofed.privacy.secure_protocol  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                f"secure.aggregation needs the package {error.name}: pip install 'protofed[flower]'"
            ) from None
        least = max(FEWEST, self.options.least(participants))
        if participants < least:
            raise ConfigError(
                f"secure.aggregation hides clients among others: a round needs {least} of them, not {participants}"
            )

    def vector(self, message: bytes) -> Vector:
        """Return a client's vector; this is computed where the client is.

        Args:
            message: Its encoded upload.

        Raises:
            PayloadError: If the upload violates its schema, or the sum might overflow.
        """
        schema = self.method.upload_schema
        assert schema is not None
        return self.layout.encode(cast(self.codec.decode(message, schema), self.method.task.dtype))

    def mean(self, payloads: Sequence[Payload]) -> Payload:
        """Return what the sum of uploads tells of each of them: the upload that all have if they are alike.

        Args:
            payloads: At least one upload.
        """
        vectors = [self.layout.encode(payload) for payload in payloads]
        return self.layout.decode(np.sum(vectors, axis=0, dtype=np.uint64), len(vectors))[0]

    def sum(self, messages: Mapping[str, bytes], record: RoundRecord) -> tuple[list[Upload], int]:
        """Return uploads that are all alike and have the sum of the clients' own, and the number of these clients.

        Args:
            messages: Encoded upload of each client; empty bytes where it stays with the client.
            record: Record of the round, to which traffic and losses are added.

        Raises:
            SecureAggregationError: If too few clients are left after a stage; nothing is aggregated then.
        """
        from protofed.privacy.secure_protocol import SecureClient, SecureServer, conduct, here

        clients: dict[str, SecureClient] = {}
        for name, message in messages.items() if self.ask is None else ():
            try:
                clients[name] = SecureClient(name, self.vector(message))
            except PayloadError as error:
                record.refuse(name, error)
        names = list(messages if self.ask else clients)
        server = SecureServer(names, max(FEWEST, self.options.least(len(messages))), self.layout.length)
        try:
            total = conduct(server, self._counted(self.ask or here(clients), record))
        finally:
            for name, reason in server.lost.items():
                record.lose(name, f"secure aggregation: {reason}", "aggregation")
        payloads = self.layout.decode(total, len(server.arrived))
        # Where clients hold different classes, the last have none left to report.
        told = [p for p in payloads if any(tensor.numel() for tensor in p.values())]
        return [Upload("all clients", payload) for payload in told], len(server.arrived)

    def _counted(self, ask: Ask, record: RoundRecord) -> Ask:
        """Return ``ask``, with the bytes of requests and answers added to the round's traffic."""
        from protofed.privacy.secure_protocol import size_of

        def counted(stage: Stage, requests: Mapping[str, Values]) -> Iterator[tuple[str, Values | str]]:
            for request in requests.values():
                record.add_traffic("down", size_of(request), 0)
            for name, answer in ask(stage, requests):
                if not isinstance(answer, str):
                    record.add_traffic("up", size_of(answer), self.layout.reals if stage == "masked" else 0)
                yield name, answer

        return counted
