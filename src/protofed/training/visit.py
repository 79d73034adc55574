"""A visit: clients receive, train and upload; or receive and predict.

The course of a visit is written here once, for a group of clients of one architecture. How their models compute is
the business of :class:`Steps`: one client with plain autograd, or a stack of them (see
:mod:`protofed.training.plain` and :mod:`protofed.training.stacked`). Messages come in and go out as bytes, so that
the same code serves the simulation and a node of a network.

Every hook of the method sees a ``Local`` whose model has that client's present weights. A visit works on copies,
and what it made of its clients is kept once, at its end: one that fails leaves nothing behind.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from protofed.errors import ProtofedError
from protofed.methods.contract import Local, Method, Phase, Tensors
from protofed.samples import Samples
from protofed.seeding import Stream, derive, seeded
from protofed.training.batches import batches, epoch_rows
from protofed.training.client import Client, LocalPlan
from protofed.training.roster import Roster, versions
from protofed.wire import Codec, cast

if TYPE_CHECKING:
    from protofed.models import SplitModel

Messages = Mapping[str, bytes | None]
"""The encoded broadcast of each client."""


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


class Steps(Protocol):
    """How the models of a group of clients compute; clients are counted from 0 in the group's order."""

    def take(self, client: int, model: SplitModel) -> None:
        """Begin with the weights that ``model`` has now."""
        ...

    def model(self, client: int) -> AbstractContextManager[SplitModel]:
        """Lend a model with the client's present weights; what is done to them inside the block stays done."""
        ...

    def begin(self, phase: Phase, plan: LocalPlan, data: Sequence[Samples], locals_: Sequence[Local]) -> None:
        """Begin a phase of training, with fresh optimisers, on each client's ``data``."""
        ...

    def epoch(self, rows: Sequence[Sequence[Tensor]]) -> list[Tensors]:
        """Do an epoch's steps; ``rows`` are those of each client's batches.

        Returns:
            Each client's ``during`` statistics; empty where the phase collects none.
        """
        ...

    def refresh(self) -> None:
        """Take anew what methods keep on their clients, after a hook may have changed it."""
        ...

    def losses(self) -> list[dict[str, float]]:
        """Return each client's mean losses over all phases so far."""
        ...

    def statistics(self, data: Sequence[Samples]) -> list[Tensors]:
        """Return each client's statistics of its ``data``, in eval mode."""
        ...

    def score(self, data: Sequence[Samples], locals_: Sequence[Local]) -> list[dict[str, int]]:
        """Return, per client and rule of the method, how many of its ``data`` are classified correctly."""
        ...


@dataclass
class _Visit:
    """A client at work.

    Attributes:
        client: What is kept of it in the end.
        local: What its method is handed.
        stream: Torch's random numbers for its training.
        changed: Whether its model is no longer the one it came with.
    """

    client: Client
    local: Local
    stream: Stream
    changed: bool


@dataclass(frozen=True)
class LocalTrainer:
    """Takes clients through their visits.

    Attributes:
        method: The method.
        codec: How messages are encoded.
        seed: The experiment's seed.
    """

    method: Method
    codec: Codec
    seed: int

    def train(
        self, steps: Steps, clients: Roster, names: Sequence[str], messages: Messages, round: int
    ) -> list[Trained]:
        """Run a round of some clients of one architecture and plan.

        Args:
            steps: How their models compute.
            clients: All clients.
            names: Who is trained.
            messages: The encoded broadcast of each.
            round: Counted from 1.

        Raises:
            PayloadError: If a broadcast breaks its schema, or an upload does not fit the codec.
        """
        start = time.perf_counter()
        visits = self._open(steps, clients, names, messages, round, training=True)
        statistics: list[Tensors] = [{} for _ in visits]
        for number, phase in enumerate(self.method.phases(round)):
            found = self._phase(steps, visits, phase, number)
            statistics = [new or old for new, old in zip(found, statistics, strict=True)]
        sends = self.method.upload_schema is not None and self.method.communicates(round)
        if sends and self.method.statistics_from == "after":
            statistics = steps.statistics([visit.client.train for visit in visits])
        together = (time.perf_counter() - start) / len(visits)
        results = []
        for index, (visit, losses) in enumerate(zip(visits, steps.losses(), strict=True)):
            start = time.perf_counter()
            message, failure = None, ""
            if sends:
                with visit.stream, steps.model(index) as model:
                    _to_eval(model)
                    message, failure = self.compose(visit.local, statistics[index], visit.client.train)
            seconds = together + time.perf_counter() - start
            results.append(Trained(visit.client.name, message, losses, len(visit.client.train), seconds, failure))
        _keep(steps, clients, visits)
        return results

    @torch.no_grad()
    def evaluate(
        self, steps: Steps, clients: Roster, names: Sequence[str], messages: Messages | None, round: int
    ) -> list[Evaluated]:
        """Score test (and validation) samples by every rule of the method.

        The clients first receive their messages and keep what they received; without messages they are scored with
        what they have.
        """
        start = time.perf_counter()
        visits = self._open(steps, clients, names, messages, round, training=False)
        members = [visit.client.member for visit in visits]
        locals_ = [visit.local for visit in visits]
        test = steps.score([m.test for m in members], locals_)
        held_out = [m.validation or Samples(m.test.x[:0], m.test.y[:0]) for m in members]
        validation = steps.score(held_out, locals_) if any(m.validation for m in members) else test
        if messages is not None:
            _keep(steps, clients, visits)
        seconds = (time.perf_counter() - start) / len(visits)
        return [
            Evaluated(
                member.name,
                test[index],
                len(member.test),
                seconds,
                (validation[index], len(member.validation)) if member.validation else ({}, 0),
            )
            for index, member in enumerate(members)
        ]

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

    def _open(
        self,
        steps: Steps,
        clients: Roster,
        names: Sequence[str],
        messages: Messages | None,
        round: int,
        *,
        training: bool,
    ) -> list[_Visit]:
        """Bring copies of the clients to the device, with what they receive."""
        visits = []
        for index, name in enumerate(names):
            client = clients.fetch(name)
            before = versions(client.model)
            _to_eval(client.model)
            message = messages[name] if messages else None
            with seeded(self.seed, "receive", round, name):
                local = self.receive(client, message, round, deliver=messages is not None)
            stream = Stream(self.seed, "training", round, name)
            if training:
                if type(self.method).begin is not Method.begin:
                    client.model.train()
                    with stream:
                        self.method.begin(local)
                for layer, key in enumerate(client.model.noise_keys().values()):
                    key.fill_(derive(self.seed, "noise", round, name, layer))
            steps.take(index, client.model)
            visits.append(_Visit(client, local, stream, training or versions(client.model) != before))
        return visits

    def _phase(self, steps: Steps, visits: Sequence[_Visit], phase: Phase, number: int) -> list[Tensors]:
        """Train one phase; return the statistics of each client's last epoch, if they are collected in training."""
        data = [visit.client.train for visit in visits]
        if phase.source is not None:
            for index, visit in enumerate(visits):
                with visit.stream, steps.model(index) as model:
                    model.train()
                    data[index] = Samples(*phase.source(visit.local))
        plan = visits[0].client.plan
        steps.begin(phase, plan, data, [visit.local for visit in visits])
        statistics: list[Tensors] = [{} for _ in visits]
        for epoch in range(phase.passes(plan.epochs)):
            rows = [
                epoch_rows(
                    len(own),
                    visit.client.plan.batch_size,
                    visit.client.model.needs_two_samples,
                    self.seed,
                    *(visit.local.round, visit.client.name, number, epoch),
                )
                for own, visit in zip(data, visits, strict=True)
            ]
            # Several clients' steps draw nothing: their noise comes from keys.
            with visits[0].stream if len(visits) == 1 else nullcontext():
                statistics = steps.epoch(rows)
            if type(self.method).epoch_end is not Method.epoch_end:
                for index, visit in enumerate(visits):
                    with visit.stream, steps.model(index) as model:
                        model.train()
                        self.method.epoch_end(visit.local, statistics[index])
                steps.refresh()
        return statistics


def _keep(steps: Steps, clients: Roster, visits: Sequence[_Visit]) -> None:
    """Keep what the clients have become."""
    for index, visit in enumerate(visits):
        visit.client.state, visit.client.received = visit.local.state, visit.local.received
        with steps.model(index) if visit.changed else nullcontext():
            clients.store.write(visit.client.name, visit.client.park(), model=visit.changed)


def _to_eval(model: torch.nn.Module) -> None:
    """Put a model into eval mode; walking through one that is there takes longer than a small layer's work."""
    if model.training:
        model.eval()


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
