"""The stage of client-level differential privacy.

Every upload becomes a vector of limited length. The server adds the vectors of a round up, adds noise to their sum,
and gives the method a single upload in place of all: the mean or the sum that it would have made of them. Whatever
follows from it, the next broadcast included, is then as private as the noisy sum is (the Gaussian mechanism;
McMahan et al., "Learning Differentially Private Recurrent Language Models", ICLR 2018). Neighbours differ in the
presence of one client (:mod:`protofed.stages.privacy.accounting`): its vector is in the sum, or zero is.

Under secure aggregation, clients limit the length of their own vectors, and each adds a share of the noise.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from protofed.errors import ConfigError
from protofed.methods.contract import Method, Upload
from protofed.rounds.stage import Opened
from protofed.runs.records import RoundRecord
from protofed.runs.spent import Spent
from protofed.stages.privacy.accounting import Release, epsilon, find_noise
from protofed.stages.privacy.ledger import Budgeted, Ledger
from protofed.stages.privacy.noise import BITS, OwnNoise, Source, Vector, from_seed
from protofed.stages.privacy.options import PrivacyOptions
from protofed.stages.privacy.samples import dp_obstacle
from protofed.stages.robust.vectors import Part, clamp_field, parts_of
from protofed.visits.private import SHORT
from protofed.wire.schema import Payload, Schema

SURE = 2.0
"""A class counts as reported if its noisy number of reporters exceeds so many standard deviations of the noise."""
EVERYONE = "all clients"  #: Sender of the upload that stands for all


class VectorLayout:
    """Uploads as vectors of one length, the same for every client.

    A field of weights contributes its change since the broadcast, and so do rows of classes: a table with a row for
    each of the K classes, zero for those that the client lacks, and K numbers that say which it has. Changes and
    numbers share one vector and so one norm; if it is shortened, the client weighs less in the quotient of their
    sums. Sums over samples contribute as they are, numbers of samples not at all: all clients weigh the same.
    """

    def __init__(self, schema: Schema, clip: float) -> None:
        self.schema, self.clip = schema, clip
        self.parts = parts_of(schema)
        self.reported = {p.labels for p in self.parts if p.layout == "rows" and not p.field.sums}
        # The numbers of a client that has all K classes are as long as the longest change.
        self.unit = clip / math.sqrt(schema.num_classes)
        self.shapes = {part.name: self._shape(part) for part in self.parts}
        self.sizes = [math.prod(shape) for shape in self.shapes.values()]
        self.sizes += [schema.num_classes] * len(self.reported)
        self.length = sum(self.sizes)

    def _shape(self, part: Part) -> list[int]:
        sizes = [size if isinstance(size, int) else self.schema.sizes.get(size, -1) for size in part.field.shape]
        return [self.schema.num_classes, *sizes[1:]] if part.layout == "rows" else sizes

    def vector(self, payload: Payload, centre: Payload) -> Tensor:
        """Return an upload as a float64 vector; zero from a client whose weight is 0.

        Args:
            centre: The broadcast that opened the round; may be empty.
        """
        pieces = []
        for part in self.parts:
            value, origin = payload[part.name].double(), self._origin(part, centre)
            if part.layout == "rows":
                classes = payload[part.labels]
                value = torch.zeros_like(origin).index_copy(0, classes, value - origin[classes])
            else:
                value = value - origin
            pieces.append(value.flatten())
        for name in self.reported:
            held = torch.zeros(self.schema.num_classes, dtype=torch.float64)
            pieces.append(held.index_fill(0, payload[name], self.unit))
        counts = [int(payload[name]) for name, field in self.schema.fields.items() if field.kind == "count"]
        return torch.cat(pieces) * (0.0 not in counts)

    def clip_upload(self, payload: Payload, centre: Payload) -> tuple[Tensor, bool]:
        """Return an upload as a vector of limited length, and whether it had to be shortened."""
        vector = self.vector(payload, centre)
        length = float(vector.norm())
        return (vector * min(1.0, self.clip / length) if length else vector), length > self.clip

    def upload(self, total: Tensor, noise: float, centre: Payload, expected: float) -> Payload:
        """Return the upload that stands for all; sums of changes are divided by ``expected`` clients."""
        pieces = dict(zip([*self.shapes, *self.reported], total.split(self.sizes), strict=True))
        numbers = {name: pieces[name] / self.unit for name in self.reported}
        sure = max(SURE * noise / self.unit, 1e-6)
        everything = torch.arange(self.schema.num_classes)
        payload: Payload = {}
        for name, field in self.schema.fields.items():
            if field.kind == "label":
                payload[name] = everything[numbers[name] > sure] if name in numbers else everything
            elif field.kind == "count":
                payload[name] = torch.ones((), dtype=torch.int64)
        for part in self.parts:
            value, origin = pieces[part.name].reshape(self.shapes[part.name]), self._origin(part, centre)
            if part.labels in numbers and not part.field.sums:
                classes = payload[part.labels]
                share = numbers[part.labels][classes].reshape(-1, *[1] * (value.dim() - 1))
                value = origin[classes] + value[classes] / share
            elif not part.field.sums:
                value = origin + value / expected
            payload[part.name] = clamp_field(value, part.field)
        return payload

    def _origin(self, part: Part, centre: Payload) -> Tensor:
        """Return the origin of a part's changes, in the shape of its piece: the broadcast, or zero."""
        origin = torch.zeros(self.shapes[part.name], dtype=torch.float64)
        sent = centre.get(part.name)
        if sent is None or part.field.sums:
            return origin
        if part.layout == "rows":
            return origin.index_copy(0, centre[part.labels], sent.double())
        return sent.double()


class ClientPrivacy(Budgeted):
    """The stage of ``privacy.mode=client``.

    Args:
        rates: For every round, the probability with which a client takes part if a secret coin decides, 1 if
            anything else does, and 0 if clients send nothing.
        expected: Participants of a round.
        shared: Whether clients make the noise, and the sum of their shares is all that the server sees.
    """

    hides = "outside"

    def __init__(
        self,
        options: PrivacyOptions,
        method: Method,
        rates: Sequence[float],
        expected: float,
        source: Source,
        shared: bool = False,
    ) -> None:
        self.options, self.rates, self.expected = options, rates, expected
        self.source, self.shared, self.dtype = source, shared, method.task.dtype
        self.ledger = Ledger()
        self.layout = layout_of(method, options)
        self.noise = noise_of(options, rates)
        first = next((round_number for round_number, rate in enumerate(rates, start=1) if rate), len(rates))
        if (least := self.epsilon(first)) > options.budget:
            raise ConfigError(
                f"privacy.epsilon={options.budget:g} is less than one round costs with privacy.noise={self.noise:g}"
                f": {least:.3g} at privacy.delta={options.delta:g}"
            )

    def epsilon(self, rounds: int) -> float:
        """Return the ε that the first ``rounds`` rounds cost together."""
        again = Release(self.noise, 1.0, self.ledger.repeated)
        released = [*_releases(self.rates[:rounds], self.noise), again]
        return epsilon(released, self.options.delta, self.options.accountant)

    def __call__(self, uploads: Iterator[Upload], opened: Opened, record: RoundRecord) -> Iterator[Upload]:
        """Yield the one upload that stands for all of a round; clipped ones are counted in the record."""
        if self.shared:  # clients have made the noise: what arrives stands for all
            yield from uploads
            return
        assert record.privacy is not None
        centre, spent = opened.payload or {}, record.privacy
        spent.clipped = 0
        total = torch.zeros(self.layout.length, dtype=torch.float64)
        deviation = self.noise * self.options.clip
        noise = self.source(opened.round)
        step = noise.step(deviation)
        for upload in uploads:
            vector, shortened = self.layout.clip_upload(upload.payload, centre)
            spent.clipped += shortened
            total += (vector * SHORT / step).trunc() * step if step else vector
        yield self.stand_for_all(noise.add(total, deviation), deviation, centre)

    def stand_for_all(self, total: Tensor, deviation: float, centre: Payload) -> Upload:
        """Return the upload that stands for all, given the standard deviation of the noise of each number."""
        payload = self.layout.upload(total, deviation, centre, self.expected)
        real = {n for n, field in self.layout.schema.fields.items() if field.kind == "real"}
        return Upload(EVERYONE, {n: t.to(self.dtype) if n in real else t for n, t in payload.items()})

    def end(self, round_number: int) -> None:
        """Count the release of a round."""
        if self.rates[round_number - 1]:
            self.ledger.publish(round_number)

    def shown(self, uploads: Sequence[Upload], opened: Opened, seed: int | None) -> Sequence[Upload]:
        """Return the upload that stands for all, with noise of one's own."""
        other = copy.copy(self)
        other.source, other.noise = from_seed(seed or 0, "privacy"), 0.0 if seed is None else self.noise
        record = RoundRecord(opened.round, [])
        self.account(record)
        return list(other(iter(uploads), opened, record))

    def number(self, rounds: int) -> int:
        """Return the number of the first ``rounds`` rounds in which clients send something."""
        return sum(rate > 0 for rate in self.rates[:rounds])

    def account(self, record: RoundRecord) -> None:
        """Record the cost of all rounds so far."""
        round_number, before = record.round, record.privacy
        record.privacy = Spent(
            "client",
            self.epsilon(round_number),
            self.options.delta,
            self.noise,
            self.options.clip,
            max(self.rates[:round_number]),
            self.number(round_number) + self.ledger.repeated,
            before.clipped if before else 0,
            accountant=self.options.accountant,
        )

    def note(self) -> Sequence[str]:
        """Describe the protection."""
        o = self.options
        drawn = [rate for rate in self.rates if rate]
        amplified = "without amplification: participation.sampling is not poisson"
        if self.shared:
            amplified = "without amplification: clients of a round know each other"
        if any(rate < 1 for rate in drawn):
            amplified = f"amplified by secret Poisson participation with probability {min(drawn):g}"
        return (
            f"Differential privacy of clients: changes of norm at most {o.clip:g}, noise of {self.noise:.4g} times "
            f"that on their sum{', of which each client adds a share' if self.shared else ''}, "
            f"ε = {self.epsilon(len(self.rates)):.3g} at δ = {o.delta:g} after all rounds for runs with and "
            f"without one client, {amplified}.",
        )


def noise_of(options: PrivacyOptions, rates: Sequence[float]) -> float:
    """Return the noise multiplier: the one that is given, or the one that the budget needs for all rounds."""
    if options.noise is not None:
        return options.noise
    return find_noise(lambda noise: _releases(rates, noise), options.budget, options.delta, options.accountant)


def _releases(rates: Sequence[float], noise: float) -> list[Release]:
    return [Release(noise, rate) for rate in rates]


def layout_of(method: Method, options: PrivacyOptions) -> VectorLayout:
    """Return the vectors of a method's uploads."""
    schema = method.upload_schema
    assert schema is not None
    if reason := dp_obstacle(method) or _find_obstacle(schema):
        raise ConfigError(f"privacy.mode=client cannot clip the uploads of {method.name}: {reason}")
    return VectorLayout(schema, options.clip)


class NoisySums:
    """Clipped contributions as vectors of whole numbers, to which clients add shares of the noise.

    Numbers are rounded towards zero, which lengthens no vector: one client changes a sum by at most ``C``.

    Args:
        rates: As for :class:`ClientPrivacy`.
        fraction_bits: Binary digits after the point.

    Attributes:
        length: Number of whole numbers in a vector.
        reals: The same: all of them stand for real numbers.
    """

    def __init__(self, options: PrivacyOptions, method: Method, rates: Sequence[float], fraction_bits: int) -> None:
        self.layout = layout_of(method, options)
        self.length = self.reals = self.layout.length
        self.unit = 2.0**fraction_bits
        if options.clip * self.unit * max(1, method.task.clients) > 2.0 ** (BITS - 1):
            raise ConfigError(
                f"privacy.clip={options.clip:g} might overflow the sum of {method.task.clients} clients: lower "
                "secure.fraction_bits"
            )
        self.noise = OwnNoise(noise_of(options, rates) * options.clip * self.unit, options.colluders)

    def encode(self, payload: Payload, centre: Payload) -> Vector:
        """Return a client's clipped contribution, without noise."""
        vector, _ = self.layout.clip_upload(payload, centre)
        return (vector * self.unit).trunc().to(torch.int64).numpy().view(np.uint64)

    def decode(self, total: Vector) -> Tensor:
        """Return the noisy sum of contributions in float64."""
        return torch.from_numpy(total.view(np.int64).copy()).double() / self.unit


def _find_obstacle(schema: Schema) -> str:
    """Return why vectors cannot be made of uploads; "" if they can."""
    for part in parts_of(schema):
        if not part.comparable:
            return f"those of different clients have no {part.name} in common"
    counted = [name for name, field in schema.fields.items() if field.kind == "count" and field.shape]
    return f"its server needs their {counted[0]}, which no noise hides" if counted else ""
