"""The stage of secure aggregation: single uploads go in, uploads that are all alike come out."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from protofed.compute.seeding import derive
from protofed.errors import ConfigError, FederationError, PayloadError
from protofed.methods.contract import Method, Upload
from protofed.rounds.stage import Opened, Stage
from protofed.runs.records import RoundRecord
from protofed.stages.privacy.clients import ClientPrivacy, NoisySums
from protofed.stages.privacy.noise import NO_NOISE, OwnNoise, Vector
from protofed.stages.secure.options import SecureOptions
from protofed.stages.secure.sums import SumLayout, require_enough, traffic
from protofed.untrusted import limits
from protofed.visits.contract import Trained
from protofed.wire.codec import Codec, cast
from protofed.wire.schema import Payload


class Offer(NamedTuple):
    """A client's contribution to a sum, with the noise still to be added; it must not leave the client unmasked."""

    vector: Vector
    noise: OwnNoise

    def to_bytes(self) -> bytes:
        """Return the offer as bytes: 8 per number, and the noise."""
        return self.vector.astype("<u8").tobytes() + self.noise.to_bytes()

    @classmethod
    def of(cls, content: bytes) -> Offer:
        """Return the offer that :meth:`to_bytes` wrote."""
        end = len(content) - len(NO_NOISE.to_bytes())
        return cls(np.frombuffer(content[:end], dtype="<u8").astype(np.uint64), OwnNoise.of(content[end:]))


class Summed(NamedTuple):
    """The server's knowledge of a round."""

    total: Vector
    clients: int
    threshold: int  # vectors without which the sum could not have been read


Conduct = Callable[["SecureSum", Sequence[str], int, Mapping[str, str], RoundRecord], Summed]
"""Runs the protocol of a round with clients that hold their own uploads: given the stage, their names, the
threshold, and why others that were asked are absent. It records traffic and losses."""


class SecureSum(Stage):
    """Secure aggregation of the uploads of every round.

    In a simulation the masks of the protocol would cancel: integers are added modulo 2⁶⁴ without them.

    Args:
        conduct: None for clients of this process.
        noisy: Sums of clipped contributions with noise, in place of sums of uploads; None without.
        seed: Of the clients' noise; None for the operating system's random numbers.
        noise: Of sums of uploads; ``noisy`` has its own.
        hiding: Makes of a noisy sum one that stands for all; given together with ``noisy``.
    """

    hides = "server"

    def __init__(
        self,
        options: SecureOptions,
        method: Method,
        codec: Codec,
        conduct: Conduct | None = None,
        noisy: NoisySums | None = None,
        seed: int | None = None,
        noise: OwnNoise = NO_NOISE,
        hiding: ClientPrivacy | None = None,
    ) -> None:
        self.options, self.method, self.codec, self.conduct = options, method, codec, conduct
        self.noisy, self.seed, self.hiding = noisy, seed, hiding
        self.noise = noise if noisy is None else noisy.noise
        self.layout = SumLayout(method, options.fraction_bits)
        self.length = self.layout.length if noisy is None else noisy.length
        self.reals = self.layout.reals if noisy is None else noisy.reals

    def threshold(self, asked: int) -> int:
        """Return the vectors without which a round that asked so many clients to train cannot be read."""
        return max(limits.SUMMED, self.options.least(asked))

    def check(self, participants: int) -> None:
        """Check that enough clients take part."""
        if self.method.upload_schema is None:
            return
        least = self.threshold(participants)
        if participants < least:
            raise ConfigError(
                f"secure.aggregation hides clients among others: a round needs {least} of them, not {participants}"
            )
        try:
            self.noise.share(least)
        except PayloadError as error:
            mode = "sample" if self.noisy is None else "client"
            raise ConfigError(f"privacy.mode={mode} with secure.aggregation: {error}") from None

    def opening(self, broadcast: bytes | None) -> Payload:
        """Return the payload of the broadcast that opened a round, as clients read it; {} if it is personal."""
        schema = self.method.broadcast_schema
        if broadcast is None or schema is None or self.method.declared.personal:
            return {}
        return cast(self.codec.decode(broadcast, schema), self.method.task.dtype)

    def offer(self, client: str, message: bytes, broadcast: bytes | None, round_number: int) -> Offer:
        """Return a client's contribution to the sum of a round; computed where the client is."""
        schema = self.method.upload_schema
        assert schema is not None
        payload = cast(self.codec.decode(message, schema), self.method.task.dtype)
        return self._offer(Upload(client, payload), self.opening(broadcast), round_number)

    def _offer(self, upload: Upload, opening: Payload, round_number: int) -> Offer:
        seed = -1 if self.seed is None else derive(self.seed, "privacy", upload.client, round_number)
        payload = upload.payload
        vector = self.layout.encode(payload) if self.noisy is None else self.noisy.encode(payload, opening)
        return Offer(vector, self.noise._replace(seed=seed))

    def shown(self, uploads: Sequence[Upload], opened: Opened, seed: int | None) -> Sequence[Upload]:
        """Return the server's view of some uploads, without the protocol that hides the rest."""
        threshold, opening = self.threshold(len(uploads)), opened.payload or {}
        total = np.zeros(self.length, dtype=np.uint64)
        other = copy.copy(self)
        other.seed = seed
        if seed is None:
            other.noise = NO_NOISE
        for upload in uploads:
            vector, noise = other._offer(upload, opening, opened.round)
            total = total + vector + noise.draw(threshold, self.length)
        return other.uploads(Summed(total, len(uploads), threshold), opening)

    def __call__(self, uploads: Iterator[Trained], opened: Opened, record: RoundRecord) -> Iterator[Upload]:
        """Yield the server's view of a round; nothing if too few clients remain."""
        messages = {result.client: result.message for result in uploads if result.message is not None}
        try:
            summed = self.sum(messages, opened.messages, record)
            opening = self.opening(next(iter(opened.messages.values()), None))
            told = self.uploads(summed, opening)
        except (FederationError, PayloadError) as error:
            record.robust.kept = str(error)
            return
        opened.usable = summed.clients
        yield from told

    def uploads(self, summed: Summed, opening: Payload) -> list[Upload]:
        """Return the uploads of which a method makes what it would make of the clients' own.

        They are all alike and have the sum of the clients' own; with noise there is one, which stands for all.
        """
        if self.noisy is not None and self.hiding is not None:
            deviation = self.noise.share(summed.threshold) * math.sqrt(summed.clients) / self.noisy.unit
            return [self.hiding.stand_for_all(self.noisy.decode(summed.total), deviation, opening)]
        payloads = self.layout.decode(summed.total, summed.clients)
        # Where clients hold different classes, the last have none left to report.
        told = [p for p in payloads if any(tensor.numel() for tensor in p.values())]
        return [Upload("all clients", payload) for payload in told]

    def sum(
        self, messages: Mapping[str, bytes], broadcasts: Mapping[str, bytes | None], record: RoundRecord
    ) -> Summed:
        """Return the server's view of a round, and record traffic and losses.

        Args:
            messages: Empty where the upload stays with the client.
        """
        threshold = self.threshold(len(record.participants))
        # Of those asked: clients that fall silent while they train do not lower it.
        absent = {a.client: a.reason for a in record.missing}
        if self.conduct is not None:
            absent |= {r.client: f"{r.field}: {r.reason}" for r in record.refused}
            return self.conduct(self, list(messages), threshold, absent, record)
        offers: dict[str, Offer] = {}
        for name, message in messages.items():
            try:
                offers[name] = self.offer(name, message, broadcasts[name], record.round)
            except PayloadError as error:
                record.refuse(name, error)
        absent |= {r.client: f"{r.field}: {r.reason}" for r in record.refused}
        require_enough(len(offers), threshold, "have uploads", absent)
        total = np.zeros(self.length, dtype=np.uint64)
        for offer in offers.values():
            total = total + offer.vector + offer.noise.draw(threshold, self.length)
        down, up = traffic([*offers], self.length)
        record.add_traffic("down", down, 0)
        record.add_traffic("up", up, self.reals * len(offers))
        return Summed(total, len(offers), threshold)
