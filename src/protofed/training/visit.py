"""One client's visit: receive, train, upload; or receive and predict.

The same functions serve the simulation and a networked node: messages come in and go out as bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from protofed.errors import ProtofedError
from protofed.methods.contract import Batch, Local, Method, Phase, Tensors, Update
from protofed.seeding import derive, generator, seeded
from protofed.training.client import Client
from protofed.training.clipping import clip
from protofed.training.samples import Samples
from protofed.wire import Codec, cast

if TYPE_CHECKING:
    from protofed.models import Output

EVALUATION_BATCH = 256
NORMALISED_AT_ONCE = 2**24
"""Numbers of a client's training data up to which they are normalised once per visit instead of batch by batch."""


@dataclass(frozen=True)
class Trained:
    """What a training visit returns.

    Attributes:
        client: Its name.
        message: The encoded upload, or None where the round does not communicate.
        losses: Mean per sample over the round, per named term.
        samples: Training samples ``n_i``.
        seconds: Wall time of the visit.
        failure: Why there is no upload although the round communicates: its model has diverged. Empty otherwise.
    """

    client: str
    message: bytes | None
    losses: dict[str, float]
    samples: int
    seconds: float
    failure: str = ""


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation visit returns.

    Attributes:
        client: Its name.
        correct: Per rule, correctly classified samples; estimated where a client withholds how many it has.
        samples: Samples evaluated.
        seconds: Wall time of the visit.
        validation: The same on the validation split, as ``(correct, samples)``.
    """

    client: str
    correct: Mapping[str, float]
    samples: int
    seconds: float
    validation: tuple[Mapping[str, float], int] = field(default_factory=lambda: ({}, 0))


@dataclass(frozen=True)
class Missing:
    """What comes in place of a result where a client gives none: it is late, gone, or its visit failed.

    Attributes:
        client: Its name.
        reason: One line.
    """

    client: str
    reason: str


@dataclass(frozen=True)
class Visitor:
    """Takes clients through their visits.

    Attributes:
        method: The method.
        codec: How messages are encoded.
        seed: The experiment's seed.
    """

    method: Method
    codec: Codec
    seed: int

    def train(self, client: Client, message: bytes | None, round: int) -> Trained:
        """Run one client's round.

        Raises:
            PayloadError: If the broadcast breaks its schema, or the upload does not fit the codec.
        """
        start = time.perf_counter()
        local = self.receive(client, message, round)
        self.method.begin(local)
        for index, key in enumerate(client.model.noise_keys().values()):
            key.fill_(self.noise_key(client.name, round, index))
        losses = _Means()
        statistics: Tensors = {}
        with seeded(self.seed, "training", round, client.name):
            for number, phase in enumerate(self.method.phases(round)):
                statistics = self._phase(client, local, phase, number, losses) or statistics
        upload, failure = None, ""
        if self.method.upload_schema is not None and self.method.communicates(round):
            if self.method.statistics_from == "after":
                statistics = self._statistics(client)
            upload, failure = self.compose(local, statistics, client.train)
        seconds = time.perf_counter() - start
        return Trained(client.name, upload, losses.means(), len(client.train), seconds, failure)

    @torch.no_grad()
    def compose(self, local: Local, statistics: Tensors, train: Samples) -> tuple[bytes | None, str]:
        """Return the message of a client's upload; or None, and why its model, which has diverged, gives none.

        Args:
            local: What the client has at hand.
            statistics: Of its training data.
            train: Those.

        Raises:
            ProtofedError: If the upload does not fit the schema or the codec although the model has not diverged;
                names the client.
        """
        schema = self.method.upload_schema
        assert schema is not None
        try:
            return self.codec.encode(self.method.upload(local, statistics), schema), ""
        except ProtofedError as error:
            local.model.eval()
            output = local.model(next(batches(train, local.model)).x) if len(train) else None
            if output is not None and not bool(output.features.isfinite().all()):
                return None, f"model: has diverged ({error})"
            raise type(error)(f"{local.name}: {error}") from None

    def noise_key(self, client: str, round: int, layer: int) -> int:
        """Return the key of a dropout layer's noise in a client's round, 63 bits."""
        return derive(self.seed, "noise", round, client, layer)

    @torch.no_grad()
    def evaluate(self, client: Client, message: bytes | None, round: int, *, deliver: bool = True) -> Evaluated:
        """Score a client's test (and validation) samples by every rule of the method.

        The client first receives ``message`` and keeps what it received, unless ``deliver`` is False: then it is
        scored with what it has.
        """
        start = time.perf_counter()
        local = self.receive(client, message, round, deliver=deliver)
        correct, samples = self._score(client, local, client.test)
        validation = self._score(client, local, client.validation) if client.validation else ({}, 0)
        return Evaluated(client.name, correct, samples, time.perf_counter() - start, validation)

    def receive(self, client: Client, message: bytes | None, round: int, *, deliver: bool = True) -> Local:
        """Let the method unpack a broadcast, or take what the client received last."""
        model = client.model
        device = next(model.parameters()).device
        payload = None
        if message is not None:
            schema = self.method.broadcast_schema
            assert schema is not None
            payload = cast(self.codec.decode(message, schema), next(model.parameters()).dtype, device)

        def features() -> tuple[Tensor, Tensor]:
            parts = [(model(batch.x).features, batch.y) for batch in batches(client.train, model)]
            return torch.cat([f for f, _ in parts]), torch.cat([y for _, y in parts])

        counts = client.train.counts(self.method.task.num_classes)
        passes = _in_eval(model, features)
        local = Local(client.name, round, model, counts, client.state, {}, passes, self.seed)
        if deliver or client.received is None:
            received = self.method.receive(local, payload)
            client.received = {name: tensor.to(device) for name, tensor in received.items()}
        local.received = client.received
        return local

    def _phase(self, client: Client, local: Local, phase: Phase, number: int, losses: _Means) -> Tensors:
        """Train one phase; return the statistics of its last epoch if they are collected during training."""
        model = client.model
        model.train()
        x, y = phase.source(local) if phase.source else (client.train.x, client.train.y)
        epochs = client.plan.epochs if phase.epochs is None else phase.epochs
        during = self.method.statistics_from == "during" and phase.source is None
        steps: list[_Step] = []
        for update in phase.updates:
            chosen = {n: p for n, p in model.named_parameters() if update.trainable(n)}
            steps.append(_Step(update, chosen, client.plan.build(chosen.values(), update.optimizer)))
        dtype = next(model.parameters()).dtype
        if phase.source is None and x.numel() <= NORMALISED_AT_ONCE:
            x = normalise(x, dtype)
        statistics: Tensors = {}
        for epoch in range(epochs):
            collected = _Statistics(self.method) if during else None
            scope = (local.round, client.name, number, epoch)
            for chosen_rows in epoch_rows(
                len(y), client.plan.batch_size, model.needs_two_samples, self.seed, *scope
            ):
                rows = chosen_rows.to(y.device)
                batch = Batch(x[rows] if phase.source else normalise(x[rows], dtype), y[rows])
                if collected is None:
                    self._step(local, batch, steps, losses)
                else:
                    collected.add(self._step_and_look(local, batch, steps, losses), batch)
            statistics = collected.totals() if collected else {}
            self.method.epoch_end(local, statistics)
        return statistics

    def _step(self, local: Local, batch: Batch, steps: list[_Step], losses: _Means) -> None:
        """Do one optimiser step per update of the phase."""
        for update, parameters, optimizer in steps:
            terms = update.loss(local.model, batch, local.received, local.state)
            total = reduce(torch.add, terms.values())
            chosen = list(parameters.values())
            gradients: Sequence[Tensor | None] = torch.autograd.grad(total, chosen, allow_unused=True)
            if update.clip is not None:
                gradients = clip(list(parameters), gradients, update.clip)
            for parameter, gradient in zip(chosen, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            losses.add(terms, len(batch.y))

    def _step_and_look(self, local: Local, batch: Batch, steps: list[_Step], losses: _Means) -> Output:
        """As :meth:`_step`; return the output that the step itself computed."""
        outputs: list[Output] = []
        hook = local.model.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
        try:
            self._step(local, batch, steps, losses)
        finally:
            hook.remove()
        return outputs[0]

    def _statistics(self, client: Client) -> Tensors:
        """Collect the method's statistics in eval mode over the training data."""
        client.model.eval()
        statistics: Tensors = {}
        for batch in batches(client.train, client.model):
            _add(statistics, self.method.statistics(client.model(batch.x), batch))
        return statistics

    def _score(self, client: Client, local: Local, samples: Samples) -> tuple[dict[str, int], int]:
        client.model.eval()
        device = samples.y.device
        correct = {rule: torch.zeros((), dtype=torch.int64, device=device) for rule in self.method.rules}
        for batch in batches(samples, client.model):
            predicted = self.method.predict(client.model, batch, local.received, local.state)
            for rule, classes in predicted.items():
                correct[rule] += (classes == batch.y).sum()
        return {rule: int(count) for rule, count in correct.items()}, len(samples)


def epoch_rows(samples: int, size: int, even: bool, seed: int, *scope: str | int) -> list[Tensor]:
    """Return the rows of each batch of an epoch, shuffled by ``seed`` and ``scope``.

    With ``even`` (BatchNorm) a batch of a single sample is left out: it has no batch statistics.
    """
    order = torch.randperm(samples, generator=generator(seed, "shuffle", *scope))
    return [rows for rows in batch_rows(order, size, even=even) if len(rows) > 1 or (len(rows) and not even)]


def batch_rows(order: Tensor, size: int, *, even: bool) -> Sequence[Tensor]:
    """Divide the ``(n,)`` shuffled rows of an epoch into ``⌈n/B⌉`` batches.

    All but the last have ``B`` rows; with ``even`` they differ by one row at most. Deep networks with BatchNorm
    need that: the variance of a last batch of two or three samples can be so small that one step ruins the model.
    """
    return order.tensor_split(-(-len(order) // size)) if even and len(order) else order.split(size)


def batches(samples: Samples, model: torch.nn.Module, size: int = EVALUATION_BATCH) -> Iterator[Batch]:
    """Yield normalised batches in order."""
    dtype = next(model.parameters()).dtype
    for start in range(0, len(samples), size):
        rows = slice(start, start + size)
        yield Batch(normalise(samples.x[rows], dtype), samples.y[rows])


def normalise(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return uint8 images ``0 … 255`` as ``-1 … 1``; anything else only converted to ``dtype``."""
    if x.dtype == torch.uint8:
        return x.to(dtype).div_(127.5).sub_(1)
    return x.to(dtype)


_Pass = Callable[[], tuple[Tensor, Tensor]]


def _in_eval(model: torch.nn.Module, function: _Pass) -> _Pass:
    """Return ``function`` run in eval mode without gradients."""

    @torch.no_grad()
    def run() -> tuple[Tensor, Tensor]:
        training = model.training
        model.eval()
        try:
            return function()
        finally:
            model.train(training)

    return run


def _add(total: Tensors, more: Tensors) -> None:
    for name, tensor in more.items():
        total[name] = total[name] + tensor if name in total else tensor


class _Step(NamedTuple):
    update: Update
    parameters: dict[str, torch.nn.Parameter]
    optimizer: torch.optim.Optimizer


class _Statistics:
    """A method's statistics of the outputs of many steps, worked out for some hundred samples at a time."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.sums: Tensors = {}
        self.outputs: list[Output] = []
        self.batches: list[Batch] = []

    def add(self, output: Output, batch: Batch) -> None:
        self.outputs.append(type(output)(*(part.detach() for part in output)))
        self.batches.append(batch)
        if self.method.statistics_by_batch or sum(len(b.y) for b in self.batches) >= EVALUATION_BATCH:
            self._work_out()

    def totals(self) -> Tensors:
        if self.batches:
            self._work_out()
        return self.sums

    @torch.no_grad()
    def _work_out(self) -> None:
        output = type(self.outputs[0])(*(torch.cat(parts) for parts in zip(*self.outputs, strict=True)))
        batch = Batch(torch.cat([b.x for b in self.batches]), torch.cat([b.y for b in self.batches]))
        _add(self.sums, self.method.statistics(output, batch))
        self.outputs, self.batches = [], []


class _Means:
    """Sample-weighted means of loss terms, without a device synchronisation per step."""

    def __init__(self) -> None:
        self.terms: dict[str, list[Tensor]] = {}
        self.samples: dict[str, list[int]] = {}

    def add(self, terms: Tensors, samples: int) -> None:
        for name, term in terms.items():
            self.terms.setdefault(name, []).append(term.detach())
            self.samples.setdefault(name, []).append(samples)

    def means(self) -> dict[str, float]:
        found = {}
        for name, terms in self.terms.items():
            weights = torch.tensor(self.samples[name], dtype=torch.float64)
            found[name] = float(torch.stack(terms).double().cpu() @ weights / weights.sum())
        return found
