"""A visit: clients receive, train and upload; or receive and predict.

This module is the only place that defines the order of a visit, for a group of clients of one architecture.
:class:`Steps` computes: for one client with plain autograd, or for a stack of clients (see
:mod:`protofed.visits.plain` and :mod:`protofed.visits.stacked`). Messages arrive and leave as bytes, so the
same code serves the simulation and the nodes of a network.

Every hook of the method sees a ``Local`` whose model has that client's present weights. A visit works on copies and
stores the results once, at its end, so that a visit that fails leaves no trace.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from protofed.compute.seeding import Stream, derive, generator, seeded
from protofed.errors import DivergedError, ProtofedError
from protofed.methods.contract import Local, Method, Phase, SplitModel, Tensors, sends
from protofed.models.layers import noise_keys
from protofed.samples import Samples
from protofed.storage.snapshots import Snapshot
from protofed.text import few
from protofed.visits.batches import batches, epoch_rows
from protofed.visits.client import LocalPlan, Member
from protofed.visits.contract import Evaluated, Messages, On, Scores, Trained
from protofed.visits.private import COUNTS, RELEASE, Noise, private_statistics
from protofed.visits.rare import without_rare
from protofed.visits.roster import Roster, versions
from protofed.wire.codec import Codec, cast
from protofed.wire.schema import Payload, Schema

Augment = Callable[[Samples, torch.Generator], Samples]  #: Returns as many samples with the same labels


class Steps(Protocol):
    """Computation for a group of clients, which are numbered from 0 in the order of the group."""

    def take(self, client: int, model: SplitModel) -> None:
        """Start from the present weights of a model."""
        ...

    def model(self, client: int) -> AbstractContextManager[SplitModel]:
        """Lend a model with the client's present weights; changes made inside the block are kept."""
        ...

    def begin(self, phase: Phase, plan: LocalPlan, data: Sequence[Samples], locals_: Sequence[Local]) -> None:
        """Begin a phase of training with new optimisers, by the plan that all clients of the group share."""
        ...

    def epoch(self, rows: Sequence[Sequence[Tensor]]) -> list[Tensors]:
        """Run an epoch on each client's batches of rows; return ``during`` statistics, if collected."""
        ...

    def refresh(self) -> None:
        """Read the clients' method tensors again, after a hook that may have changed them."""
        ...

    def losses(self) -> list[dict[str, float]]:
        """Return the mean losses of each client over all phases so far.

        Nothing counts after a step in which a term is not finite, so that the terms that are not finite in the
        result are those that were so first.
        """
        ...

    def statistics(self, data: Sequence[Samples]) -> list[Tensors]:
        """Return the statistics of each client's ``data``, in eval mode."""
        ...

    def score(self, data: Sequence[Samples], locals_: Sequence[Local]) -> list[Tensors]:
        """Count correctly classified samples.

        Args:
            data: The same object for several clients is held in memory once.

        Returns:
            Numbers per client, rule of the method, and class: ``(K,)`` int64 on the CPU.
        """
        ...


@dataclass
class _Visit:
    """A client during its visit."""

    client: Member
    local: Local  # working copies
    train: Samples  # augmented for this round if the experiment says so
    stream: Stream  # random state of torch for training
    changed: bool  # the model differs from the stored one


@dataclass(frozen=True)
class LocalTrainer:
    """Runs the visits of clients."""

    method: Method
    codec: Codec
    seed: int
    #: Transforms training samples for the steps of a round; statistics and predictions never see the results
    augment: Augment | None = None
    on: On = "own"  # test samples to score on, besides clients' own
    on_every: int = 1  # rounds of such scores: multiples of it, and the ``last``
    last: int = 0
    secret: bool = False  # draw random numbers that protect samples from the operating system: at a node
    _decoded: dict[bytes, Payload] = field(default_factory=dict, init=False, repr=False, compare=False)

    def train(
        self, steps: Steps, clients: Roster, names: Sequence[str], messages: Messages, round_number: int
    ) -> list[Trained]:
        """Train a group of clients of one architecture and plan."""
        start = time.perf_counter()
        visits = self._open(steps, clients, names, messages, round_number, training=True)
        communicates = sends(self.method, round_number)
        moment = self.method.statistics.when if communicates and self.method.statistics else ""
        statistics: list[Tensors] = [{} for _ in visits]
        if moment == "before":
            statistics = self._statistics(steps, visits)
        for number, phase in enumerate(self.method.round(round_number).phases):
            collected = self._phase(steps, visits, phase, number)
            statistics = [new or old for new, old in zip(collected, statistics, strict=True)]
        if moment == "during":
            statistics = [own or self._none(steps, i, visits[i].client) for i, own in enumerate(statistics)]
        if moment == "after":
            statistics = self._statistics(steps, visits)
        together = (time.perf_counter() - start) / len(visits)
        results = []
        for index, (visit, losses) in enumerate(zip(visits, steps.losses(), strict=True)):
            if visit.client.plan.private is not None:
                losses = {}  # they are of the samples that are protected
            start = time.perf_counter()
            message, failure = None, ""
            if communicates:
                with visit.stream, steps.model(index) as model:
                    _to_eval(model)
                    message, failure = self.compose(visit.local, statistics[index], visit.client)
            seconds = together + time.perf_counter() - start
            results.append(Trained(visit.client.name, message, losses, len(visit.client.train), seconds, failure))
        _keep(steps, clients, visits)
        return results

    def _plan(self, client: Member) -> LocalPlan:
        """Return a client's plan, with random numbers that are as secret as they have to be."""
        plan = client.plan
        secret = plan.private is not None and self.secret
        return replace(plan, private=replace(plan.private, secret=True)) if secret else plan  # type: ignore[type-var]

    def _none(self, steps: Steps, index: int, client: Member) -> Tensors:
        """Return the statistics of no samples, for a client that could take no step: zeros."""
        assert self.method.statistics is not None
        with steps.model(index) as model, torch.no_grad():
            _to_eval(model)
            batch = next(batches(client.seen.at(slice(1)), model))
            found = self.method.statistics.of(model(batch.x), batch)
        return {name: torch.zeros_like(tensor) for name, tensor in found.items()}

    def _statistics(self, steps: Steps, visits: Sequence[_Visit]) -> list[Tensors]:
        """Return the statistics of each client's training data with its present weights."""
        if all(visit.client.plan.private is None for visit in visits):
            with self._hook("statistics", *(visit.client.name for visit in visits)):
                return steps.statistics([visit.client.seen for visit in visits])
        found = []
        for index, visit in enumerate(visits):
            private = self._plan(visit.client).private
            assert private is not None
            released = {n[len(RELEASE) :]: t for n, t in visit.local.state.items() if n.startswith(RELEASE)}
            if not released:
                with steps.model(index) as model:
                    released = private_statistics(model, self.method, visit.local, visit.client.train, private)
                if self.method.protection.dp_statistics:  # the same in every round, and so is its noise
                    visit.local.state |= {RELEASE + name: tensor for name, tensor in released.items()}
            found.append(released)
        return found

    @torch.no_grad()
    def evaluate(
        self, steps: Steps, clients: Roster, names: Sequence[str], messages: Messages | None, round_number: int
    ) -> list[Evaluated]:
        """Score the test and validation samples of a group of clients by every rule of the method.

        Args:
            messages: Received and stored first; None to score the clients as they are.
        """
        start = time.perf_counter()
        visits = self._open(steps, clients, names, messages, round_number, training=False)
        members = [visit.client for visit in visits]
        locals_ = [visit.local for visit in visits]
        held_out = [m.validation or m.test.at(slice(0)) for m in members]
        with self._hook("scores", *names):
            test = steps.score([m.test for m in members], locals_)
            validation = steps.score(held_out, locals_) if any(m.validation for m in members) else test
            beyond = self._beyond(steps, clients, locals_, round_number)
        if messages is not None:
            _keep(steps, clients, visits)
        seconds = (time.perf_counter() - start) / len(visits)
        return [
            Evaluated(
                member.name,
                _totals(test[index]),
                len(member.test),
                seconds,
                (_totals(validation[index]), len(member.validation)) if member.validation else _NO_SCORES,
                *beyond[index],
            )
            for index, member in enumerate(members)
        ]

    def _beyond(
        self, steps: Steps, clients: Roster, locals_: Sequence[Local], round_number: int
    ) -> list[tuple[Scores, Scores]]:
        """Score clients on all clients' test samples: on all classes, and on those they do not train on."""
        if self.on == "own" or (round_number % self.on_every and round_number != self.last):
            return [(_NO_SCORES, _NO_SCORES)] * len(locals_)
        held = clients.union.counts(self.method.task.num_classes).cpu()
        weights = [self._weights(clients, local, held) for local in locals_]
        if self.on == "shifted":
            locals_ = [
                replace(local, state=self.method.shifted(local.state, counts.to(local.counts.device)))
                for local, counts in zip(locals_, weights, strict=True)
            ]
        found = []
        scored = steps.score([clients.union] * len(locals_), locals_)
        for correct, local, each in zip(scored, locals_, weights, strict=True):
            unseen = each * (clients[local.name].train.counts(len(held)).cpu() == 0)
            found.append((_pool(correct, held, each), _pool(correct, held, unseen)))
        return found

    def _weights(self, clients: Roster, local: Local, held: Tensor) -> Tensor:
        """Return the weights ``(K,)`` int64 of each class in a client's score."""
        if self.on == "shifted":
            return clients.after(local.name).train.counts(len(held)).cpu() * (held > 0)
        return held if self.on == "union" else (held > 0).long()

    def open(self, clients: Roster, name: str, round_number: int) -> Local:
        """Load a client onto the device, with copies of state and last received tensors."""
        client, snapshot = clients[name], clients.snapshot(name)
        model = clients.working_model(name, snapshot.model)
        device = next(model.parameters()).device

        def features() -> tuple[Tensor, Tensor]:
            parts = [(model(batch.x).features, batch.y) for batch in batches(client.train, model)]
            return torch.cat([f for f, _ in parts]), torch.cat([y for _, y in parts])

        state, received = (
            {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}
            for tensors in (snapshot.state, snapshot.received)
        )
        counts = client.train.counts(self.method.task.num_classes)
        if COUNTS in state:
            counts = state[COUNTS]
        local = Local(name, round_number, model, counts, state, received, _in_eval(model, features), self.seed)
        local.training = partial(batches, client.train, model)
        local.least_samples = client.plan.least_samples
        if client.validation is not None:
            local.validation = partial(batches, client.validation, model)
        return local

    def receive(self, local: Local, message: bytes | None, *, deliver: bool = True) -> None:
        """Let the method unpack a broadcast.

        Args:
            message: None if the server has nothing to send yet.
            deliver: A broadcast is due; otherwise the client keeps the tensors received last, if any.
        """
        if local.received and not deliver:
            return
        parameter = next(local.model.parameters())
        payload = None
        if message is not None:
            schema = self.method.broadcast_schema
            assert schema is not None
            payload = cast(self._decode(message, schema), parameter.dtype, parameter.device)
        with self._hook("receive", local.name):
            received = self.method.receive(local, payload)
        local.received = {name: tensor.to(parameter.device) for name, tensor in received.items()}

    def _decode(self, message: bytes, schema: Schema) -> Payload:
        """Decode a broadcast, which mostly is the one that another client received before."""
        if message not in self._decoded:
            self._decoded.clear()
            self._decoded[message] = self.codec.decode(message, schema)
        return {name: tensor.clone() for name, tensor in self._decoded[message].items()}

    @torch.no_grad()
    def compose(self, local: Local, statistics: Tensors, client: Member) -> tuple[bytes | None, str]:
        """Encode a client's upload.

        Returns:
            The message, and an empty text; or None, and the reason, if the model has diverged or a number is too
            large for the codec.
        """
        schema = self.method.upload_schema
        assert schema is not None
        train = client.train
        try:
            with self._hook("upload", local.name):
                payload = self.method.upload(local, statistics)
            payload = without_rare(payload, schema, local.counts, client.plan.least_samples, local.received)
            if COUNTS in local.state:  # numbers of samples are not sent: all clients weigh the same
                weights = {n: payload[n].clamp(max=1) for n, f in schema.fields.items() if f.kind == "count"}
                payload = {**payload, **weights}
            return self.codec.encode(payload, schema), ""
        except Exception as error:  # also of a method's own code, which features that are not finite may break
            local.model.eval()
            if client.plan.private is not None:  # protected samples decide nothing, not even this
                found = [t for t in local.model.state_dict().values() if t.is_floating_point()]
            else:
                found = [local.model(next(batches(train, local.model)).x).features] if len(train) else []
            if not all(bool(tensor.isfinite().all()) for tensor in found):
                return None, f"model: has diverged ({' '.join(str(error).split())[:160]})"
            if isinstance(error, DivergedError):
                return None, str(error)
            if isinstance(error, ProtofedError):
                raise type(error)(f"{local.name}: {error}") from None
            raise

    @contextmanager
    def _hook(self, hook: str, *clients: str) -> Iterator[None]:
        """Add to an error that comes from the method's own code where it was called, and for which clients."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, ProtofedError) and not getattr(error, "__notes__", None):
                where = hook if "." in hook else f"{type(self.method).__qualname__}.{hook}"
                error.add_note(f"raised by {where} at {few(clients, 3)}")
            raise

    def _open(
        self,
        steps: Steps,
        clients: Roster,
        names: Sequence[str],
        messages: Messages | None,
        round_number: int,
        *,
        training: bool,
    ) -> list[_Visit]:
        """Load the clients onto the device and deliver their broadcasts."""
        visits = []
        for index, name in enumerate(names):
            local = self.open(clients, name, round_number)
            before = versions(local.model)
            _to_eval(local.model)
            message = messages[name] if messages else None
            # Where nothing is trained, what follows from no broadcast is made when the client is scored, if at all.
            if message is not None or not training or self.method.round(round_number).phases:
                with seeded(self.seed, "receive", round_number, name):
                    self.receive(local, message, deliver=messages is not None)
            stream, train = Stream(self.seed, "training", round_number, name), clients[name].train
            if training:
                if self.augment is not None and len(train):
                    train = self.augment(train, generator(self.seed, "augment", round_number, name))
                if type(self.method).begin is not Method.begin:
                    local.model.train()
                    with stream, self._hook("begin", name):
                        self.method.begin(local)
                for layer, key in enumerate(noise_keys(local.model).values()):
                    key.fill_(derive(self.seed, "noise", round_number, name, layer))
            steps.take(index, local.model)
            changed = training or versions(local.model) != before
            visits.append(_Visit(clients[name], local, train, stream, changed))
        return visits

    def _phase(self, steps: Steps, visits: Sequence[_Visit], phase: Phase, number: int) -> list[Tensors]:
        """Train one phase; return the ``during`` statistics of each client's last epoch."""
        data, names = [visit.train for visit in visits], [visit.client.name for visit in visits]
        if phase.source is not None:
            for index, visit in enumerate(visits):
                with visit.stream, steps.model(index) as model:
                    model.train()
                    data[index] = Samples(*phase.source(visit.local))
        if phase.only is not None:
            nothing = data[0].at(slice(0))
            data = [own if phase.only(v.local) else nothing for own, v in zip(data, visits, strict=True)]
        plan = self._plan(visits[0].client).at(visits[0].local.round, self.method.task.rounds)
        if phase.local_only:
            plan = replace(plan, private=None)
        noises = [Noise.of(v.local, plan.private, f"batches {number}") if plan.private else None for v in visits]
        steps.begin(plan.clip_phase(phase), plan, data, [visit.local for visit in visits])
        statistics: list[Tensors] = [{} for _ in visits]
        for epoch in range(phase.passes(plan.epochs)):
            rows = [
                noise.rows(len(own), visit.client.plan.batch_size)
                if noise
                else epoch_rows(
                    len(own),
                    visit.client.plan.batch_size,
                    visit.local.model.needs_two_samples,
                    self.seed,
                    *(visit.local.round, visit.client.name, number, epoch),
                    shuffle=plan.shuffle,
                    drop_last=plan.drop_last,
                )
                for own, visit, noise in zip(data, visits, noises, strict=True)
            ]
            # Stacked steps draw no random numbers: their noise comes from keys.
            losses = " and ".join(update.name for update in phase.updates)
            with visits[0].stream if len(visits) == 1 else nullcontext(), self._hook(losses, *names):
                statistics = steps.epoch(rows)
            if phase.after is not None:
                for index, visit in enumerate(visits):
                    with visit.stream, steps.model(index) as model:
                        model.train()
                        phase.after(visit.local, statistics[index])
                steps.refresh()
        return statistics


_NO_SCORES: Scores = ({}, 0)


def _totals(correct: Tensors) -> dict[str, int]:
    return {rule: int(numbers.sum()) for rule, numbers in correct.items()}


def _pool(correct: Tensors, samples: Tensor, weights: Tensor) -> Scores:
    """Return the score over the classes that have ``samples``, as if there were ``weights`` samples of each."""

    def pool(numbers: Tensor) -> float:
        by_class = zip(numbers.tolist(), samples.tolist(), weights.tolist(), strict=True)
        return math.fsum(n * weight / held for n, held, weight in by_class if held)

    return {rule: pool(numbers) for rule, numbers in correct.items()}, int(weights.sum())


def _keep(steps: Steps, clients: Roster, visits: Sequence[_Visit]) -> None:
    for index, visit in enumerate(visits):
        local = visit.local
        with steps.model(index) if visit.changed else nullcontext(local.model) as model:
            snapshot = Snapshot(model.state_dict(), local.state, local.received)
            clients.store.write(local.name, snapshot, model=visit.changed)


def _to_eval(model: torch.nn.Module) -> None:
    """Put a model into eval mode, unless it already is: the walk over its modules costs more than a small layer."""
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
