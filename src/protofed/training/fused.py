"""All clients of one architecture step together: their weights stacked, their losses through ``torch.func.vmap``.

A loss is written for one client. Here it runs once for many: the sum of the clients' losses has, for each client's
weights, exactly that client's gradient. Clients are sorted by their number of steps, so that those with fewer
batches drop off the end of the stack as they finish.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from protofed.methods.contract import Batch, Local, Method, Phase, Tensors, Update
from protofed.training.client import Client, LocalPlan
from protofed.training.clipping import clip
from protofed.training.executor import Messages, Sequential
from protofed.training.roster import Roster
from protofed.training.samples import Samples
from protofed.training.stacking import (
    Pile,
    StackingError,
    WithBatchingRules,
    first,
    padded_layers,
    skeleton,
    stack,
    unstack,
)
from protofed.training.visit import (
    EVALUATION_BATCH,
    Evaluated,
    Trained,
    Visitor,
    batch_rows,
    epoch_rows,
    normalise,
)

if TYPE_CHECKING:
    from protofed.models import Output, SplitModel

ELEMENTWISE = {"SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop"}
"""Optimisers of ``torch.optim`` that treat every weight for itself: stacked weights are the same to them."""

log = logging.getLogger("protofed")


class Fused:
    """Runs all clients of one architecture together.

    What cannot be vectorised (an operation without a batching rule, dropout that draws from torch's random state,
    an optimiser that looks at whole tensors, a loss that counts padding) is run client by client, and a warning
    says so once.

    Args:
        visitor: Takes single clients through what is not vectorised: receiving and uploading.
        clients: The clients.
        budget: Bytes that the stacks of one group may take; larger groups are divided.
    """

    def __init__(self, visitor: Visitor, clients: Roster, budget: float) -> None:
        self.visitor = visitor
        self.clients = clients
        self.budget = budget
        self.alone = Sequential(visitor, clients)
        self.skeletons = {kind: skeleton(model) for kind, model in clients.models.items()}
        self.refused: set[str] = set()
        self.limits: dict[str, int] = {}

    def train(self, names: Iterable[str], messages: Messages, round: int) -> Iterator[Trained]:
        """Train the named clients; results come in the order of ``names``."""
        names = list(names)
        done: dict[str, Trained] = {}
        phases = self.visitor.method.phases(round)
        for group in self._groups(names, lambda name: self._training_key(name, phases)):
            run = _Training(self, group, messages, round)
            for result in self._attempt(group, run.run, lambda g: self.alone.train(g, messages, round)):
                done[result.client] = result
        yield from (done[name] for name in names)

    def evaluate(self, names: Iterable[str], messages: Messages | None, round: int) -> Iterator[Evaluated]:
        """Evaluate the named clients; without messages, as they were left by training."""
        names = list(names)
        done: dict[str, Evaluated] = {}
        for group in self._groups(names, lambda name: (self.clients.members[name].kind,)):

            def run(group: Sequence[str] = group) -> list[Evaluated]:
                return _evaluate(self, group, messages, round)

            for result in self._attempt(group, run, lambda g: self.alone.evaluate(g, messages, round)):
                done[result.client] = result
        yield from (done[name] for name in names)

    def description(self) -> dict[str, str | int]:
        """Return what a report says of it."""
        return {"executor": "fused", "threads": torch.get_num_threads()}

    def close(self) -> None:
        """Free the store."""
        self.clients.store.close()

    def _training_key(self, name: str, phases: Sequence[Phase]) -> tuple[Any, ...]:
        """Return what clients of one stack have in common: also its steps, where their number matters."""
        member = self.clients.members[name]
        plan = member.plan
        steps = 0
        for phase in phases:
            named = {update.optimizer.get("name", plan.optimizer) for update in phase.updates}
            if named != {"SGD"} and _epochs(phase, plan) > 1:
                even = self.clients.models[member.kind].needs_two_samples
                steps = len(batch_rows(torch.arange(len(member.train)), plan.batch_size, even=even))
        return (member.kind, plan.epochs, plan.optimizer, repr(sorted(plan.settings.items())), steps)

    def _groups(self, names: Sequence[str], key: Callable[[str], tuple[Any, ...]]) -> Iterator[list[str]]:
        """Divide clients into groups that can be stacked and fit the budget; refused kinds are groups of one."""
        groups: dict[tuple[Any, ...], list[str]] = {}
        for name in names:
            groups.setdefault(key(name), []).append(name)
        for (kind, *_), members in groups.items():
            most = 1 if kind in self.refused else self._limit(kind)
            # As many groups as the budget needs, of about the same size.
            number = -(-len(members) // most)
            size = -(-len(members) // number)
            yield from (members[start : start + size] for start in range(0, len(members), size))

    def _limit(self, kind: str) -> int:
        """Return how many clients of a kind fit the budget."""
        if kind not in self.limits:
            member = next(m for m in self.clients.members.values() if m.kind == kind)
            samples = member.train if len(member.train) else member.test
            each = bytes_per_client(self.clients.models[kind], samples, member.plan)
            self.limits[kind] = max(1, int(self.budget // each))
        return self.limits[kind]

    def _attempt(
        self, group: list[str], run: Callable[[], list[Any]], alone: Callable[[list[str]], Any]
    ) -> list[Any]:
        """Run a group together; what cannot be is run client by client, from then on without trying."""
        kind = self.clients.members[group[0]].kind
        if kind in self.refused:
            return list(alone(group))
        try:
            return run()
        except RuntimeError as error:  # vmap's refusals are plain RuntimeErrors
            if isinstance(error, torch.OutOfMemoryError):
                reason = "they do not fit in memory together: lower execution.memory_budget"
            else:
                reason = str(error).strip().splitlines()[0][:160]
            self.refused.add(kind)
            log.warning("clients with %s are run one by one: %s", kind, reason)
            return list(alone(group))


@dataclass
class _Stack:
    """Weights and method tensors of a group, the client with the most steps first."""

    parameters: Tensors
    buffers: Tensors
    received: Tensors
    state: Tensors

    def first(self, clients: int) -> _Stack:
        parts = (self.parameters, self.buffers, self.received, self.state)
        return _Stack(*(first(part, clients) for part in parts))


class _Lens(nn.Module):
    """A loss as a module, for ``functional_call``; with it, the statistics of the output it computed."""

    def __init__(
        self, model: SplitModel, update: Update, statistics: Callable[[Output, Batch], Tensors] | None
    ) -> None:
        super().__init__()
        self.model = model
        self.update = update
        self.statistics = statistics
        self.checked = False

    def forward(self, batch: Batch, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        outputs: list[Output] = []
        hook = self.model.register_forward_hook(lambda _module, _inputs, output: outputs.append(output))
        try:
            terms = self.update.loss(self.model, batch, received, state)
        finally:
            hook.remove()
        if self.statistics is None or not outputs:  # an update may look at something else than the batch
            return terms, {}
        return terms, {n: t.detach() for n, t in self.statistics(outputs[0], batch).items()}


class _Training:
    """One group's round."""

    def __init__(self, executor: Fused, group: Sequence[str], messages: Messages, round: int) -> None:
        self.executor = executor
        self.visitor = executor.visitor
        self.method = executor.visitor.method
        self.roster = executor.clients
        self.group = list(group)
        self.messages = messages
        self.round = round
        self.plan: LocalPlan = self.roster.members[self.group[0]].plan
        self.bare = executor.skeletons[self.roster.members[self.group[0]].kind]
        self.sums: dict[str, Tensor] = {}
        self.samples: dict[str, Tensor] = {}

    def run(self) -> list[Trained]:
        """Train the group; nothing is kept of it unless all of it succeeds."""
        start = time.perf_counter()
        self.locals, stacked = receive(
            self.executor, self.group, self.messages, self.round, deliver=True, begin=True
        )
        keys = self.roster.models[self.roster.members[self.group[0]].kind].noise_keys()
        for index, name in enumerate(keys):
            numbers = [self.visitor.noise_key(local.name, self.round, index) for local in self.locals]
            stacked.buffers[name].copy_(torch.tensor(numbers))
        self.stack = stacked
        statistics: list[Tensors] = [{} for _ in self.group]
        for number, phase in enumerate(self.method.phases(self.round)):
            found = self._phase(phase, number)
            statistics = [new or old for new, old in zip(found, statistics, strict=True)]
        return self._upload(statistics, start)

    def _phase(self, phase: Phase, number: int) -> list[Tensors]:
        """Train one phase of all clients; return the statistics of each client's last epoch."""
        pile = Pile(
            [Samples(*phase.source(local)) if phase.source else self._train(local) for local in self.locals]
        )
        epochs = _epochs(phase, self.plan)
        during = self.method.statistics_from == "during" and phase.source is None
        statistics: list[Tensors] = [{} for _ in self.group]
        steps = _Steps(self, phase, during)
        for epoch in range(epochs):
            rows = [self._rows(local, n, number, epoch) for local, n in zip(self.locals, pile.lengths, strict=True)]
            order = sorted(range(len(rows)), key=lambda c: -len(rows[c]))
            if epoch == 0:
                steps.arrange(order, [len(r) for r in rows])
            sums = steps.epoch(pile, rows, raw=phase.source is not None)
            for place, c in enumerate(steps.order):
                statistics[c] = unstack(sums, place) if rows[c] else {}
            if type(self.method).epoch_end is not Method.epoch_end:
                for local, own in zip(self.locals, statistics, strict=True):
                    self.method.epoch_end(local, own)
                self.stack.state = stack([local.state for local in self.locals])
                steps.refresh()
        steps.finish()
        return statistics

    def _train(self, local: Local) -> Samples:
        return self.roster.members[local.name].train

    def _rows(self, local: Local, samples: int, phase: int, epoch: int) -> list[Tensor]:
        plan = self.roster.members[local.name].plan
        scope = (self.round, local.name, phase, epoch)
        return epoch_rows(samples, plan.batch_size, self.bare.needs_two_samples, self.visitor.seed, *scope)

    def _upload(self, statistics: list[Tensors], start: float) -> list[Trained]:
        """Put every client's weights back and let it compose its upload."""
        sends = self.method.upload_schema is not None and self.method.communicates(self.round)
        if sends and self.method.statistics_from == "after":
            statistics = self._statistics()
        seconds = (time.perf_counter() - start) / len(self.group)
        trained = []
        for index, local in enumerate(self.locals):
            begun = time.perf_counter()
            with self.roster.visit(local.name) as client:
                put_back(client, local, unstack(self.stack.parameters | self.stack.buffers, index))
                message, failure = None, ""
                if sends:
                    message, failure = self.visitor.compose(local, statistics[index], client.train)
            losses = {
                n: float(s[index] / self.samples[n][index]) for n, s in self.sums.items() if self.samples[n][index]
            }
            samples = len(self._train(local))
            passed = seconds + time.perf_counter() - begun
            trained.append(Trained(local.name, message, losses, samples, passed, failure))
        return trained

    @torch.no_grad()
    def _statistics(self) -> list[Tensors]:
        """Collect the method's statistics in eval mode over the training data."""
        found: list[Tensors] = [{} for _ in self.group]

        def collect(c: int, output: Output, batch: Batch) -> None:
            for name, value in self.method.statistics(output, batch).items():
                found[c][name] = found[c][name] + value if name in found[c] else value

        forward_all(self.bare, self.stack, [self._train(local) for local in self.locals], collect)
        return found


class _Steps:
    """The steps of one phase: who is still at it, with which views of the stack and of the optimisers' state."""

    def __init__(self, training: _Training, phase: Phase, during: bool) -> None:
        self.training = training
        self.phase = phase
        statistics = training.method.statistics if during else None
        training.bare.train()
        self.lenses = [_Lens(training.bare, update, statistics) for update in phase.updates]
        self.padding = padded_layers(training.bare)

    def arrange(self, order: list[int], steps: list[int]) -> None:
        """Sort the stack by steps, the client with the most first."""
        training = self.training
        self.order = order
        plan = training.plan
        for update in self.phase.updates:
            name = update.optimizer.get("name", plan.optimizer)
            if name not in ELEMENTWISE:
                raise StackingError(f"the optimiser {name} looks at more than one weight at a time")
            if name != "SGD" and len(set(steps)) > 1 and _epochs(self.phase, plan) > 1:
                # Their state counts steps, which then differ from client to client.
                raise StackingError(
                    f"the optimiser {name} counts steps, and clients have different numbers of them"
                )
        index = torch.tensor(order, device=next(iter(training.stack.parameters.values())).device)
        parts = (training.stack.parameters, training.stack.buffers, training.stack.received, training.stack.state)
        self.stack = _Stack(*({n: t[index] for n, t in part.items()} for part in parts))
        self.views: dict[int, _View] = {}

    def refresh(self) -> None:
        """Take the method's state anew."""
        index = self.order
        self.stack.state = {n: t[index] for n, t in self.training.stack.state.items()}
        for clients, view in self.views.items():
            view.stack.state = first(self.stack.state, clients)

    def finish(self) -> None:
        """Put the stack back in the group's order."""
        back = [self.order.index(c) for c in range(len(self.order))]
        training = self.training
        training.stack.parameters = {n: t[back] for n, t in self.stack.parameters.items()}
        training.stack.buffers = {n: t[back] for n, t in self.stack.buffers.items()}

    def epoch(self, pile: Pile, rows: list[list[Tensor]], *, raw: bool) -> Tensors:
        """Do all steps of an epoch; return ``(C, …)`` statistics in the sorted order."""
        places, weights, counts = pile.places([rows[c] for c in range(len(rows))])
        places, weights = places[self.order], weights[self.order]
        counts = [counts[c] for c in self.order]
        dtype = next(iter(self.stack.parameters.values())).dtype
        sums: Tensors = {}
        for t in range(places.shape[1]):
            sizes = [own[t] for own in counts if len(own) > t]
            most, active = max(sizes), len(sizes)
            where = places[:active, t, :most]
            x, y = pile.x[where], pile.y[where]
            weight = None if min(sizes) == most else weights[:active, t, :most].to(dtype)
            batch = Batch(x if raw else normalise(x, dtype), y, weight)
            for name, value in self._step(batch, active, sizes).items():
                if name not in sums:
                    sums[name] = value.new_zeros(len(counts), *value.shape[1:])
                sums[name][:active] += value
        return sums

    def _step(self, batch: Batch, clients: int, sizes: list[int]) -> Tensors:
        view = self._view(clients)
        statistics: Tensors = {}
        for number, lens in enumerate(self.lenses):
            self._check_padding(lens, view, batch)
            terms, found = self._losses(lens, view, batch)
            total = reduce(torch.add, terms.values()).sum()
            chosen = list(view.chosen[number].values())
            gradients: Sequence[Tensor | None] = torch.autograd.grad(total, chosen, allow_unused=True)
            if lens.update.clip is not None:
                gradients = clip(list(view.chosen[number]), gradients, lens.update.clip, stacked=True)
            for parameter, gradient in zip(chosen, gradients, strict=True):
                parameter.grad = gradient
            view.optimizers[number].step()
            self._count(terms, sizes)
            statistics = statistics or found
        return statistics

    def _check_padding(self, lens: _Lens, view: _View, batch: Batch) -> None:
        """Refuse a method whose loss or statistics depend on what stands in rows of weight 0; tried once."""
        if batch.weight is None or lens.checked:
            return
        lens.checked = True
        padding = (batch.weight == 0).view(*batch.weight.shape, *[1] * (batch.x.dim() - 2))
        found = []
        for x in (batch.x, batch.x.masked_fill(padding, 3.0)):
            stacked = replace(view.stack, buffers={n: b.clone() for n, b in view.stack.buffers.items()})
            terms, statistics = self._losses(lens, view._replace(stack=stacked), batch._replace(x=x))
            found.append({n: t.detach() for n, t in (terms | statistics).items()})
        for name, value in found[0].items():
            if not torch.allclose(value, found[1][name], rtol=1e-3, atol=1e-5, equal_nan=True):
                raise StackingError(
                    f"{name!r} counts padded samples: the method should use batch.mean or batch.weight"
                )

    def _losses(self, lens: _Lens, view: _View, batch: Batch) -> tuple[Tensors, Tensors]:
        """Return ``(C,)`` terms and ``(C, …)`` statistics."""
        buffers = view.stack.buffers
        rows = dict.fromkeys(
            self.padding, batch.x.new_zeros(len(batch.y), 0) if batch.weight is None else batch.weight
        )

        def one(parameters: Tensors, buffers: Tensors, batch: Batch, received: Tensors, state: Tensors) -> Any:
            tensors = {f"model.{n}": t for n, t in (parameters | buffers).items()}
            with WithBatchingRules():
                return functional_call(lens, tensors, (batch, received, state))

        # The noise comes from keys; whatever else would draw is refused.
        dims = (0, 0, Batch(0, 0, None if batch.weight is None else 0), 0, 0)  # type: ignore[arg-type]
        together = vmap(one, in_dims=dims, randomness="error")
        found: tuple[Tensors, Tensors] = together(
            view.leaves, buffers | rows, batch, view.stack.received, view.stack.state
        )
        return found

    def _count(self, terms: Tensors, sizes: list[int]) -> None:
        """Add up sample-weighted losses, in the group's order."""
        training = self.training
        places = self.order[: len(sizes)]
        for name, term in terms.items():
            if name not in training.sums:
                training.sums[name] = term.new_zeros(len(training.group)).detach()
                training.samples[name] = torch.zeros(len(training.group))
            number = torch.tensor(sizes, dtype=term.dtype, device=term.device)
            training.sums[name][places] += term.detach() * number
            training.samples[name][places] += torch.tensor(sizes, dtype=torch.float32)

    def _view(self, clients: int) -> _View:
        """Return leaves and optimisers for the first ``clients``; they share memory with the whole stack."""
        if clients in self.views:
            return self.views[clients]
        own = self.stack.first(clients)
        leaves = {n: t.detach().requires_grad_() for n, t in own.parameters.items()}
        view = _View(own, leaves, [], [])
        larger = [view for number, view in self.views.items() if number > clients]
        last = larger[-1] if larger else None  # stacks shrink: it is the one that has done all steps so far
        for number, update in enumerate(self.phase.updates):
            chosen = {n: p for n, p in leaves.items() if update.trainable(n)}
            optimizer = self.training.plan.build(chosen.values(), update.optimizer)
            if last is not None:
                for name, mine in chosen.items():
                    theirs = last.chosen[number][name]
                    state = last.optimizers[number].state.get(theirs, {})
                    optimizer.state[mine] = {k: _part(v, theirs, clients) for k, v in state.items()}
            view.chosen.append(chosen)
            view.optimizers.append(optimizer)
        self.views[clients] = view
        return view


def _epochs(phase: Phase, plan: LocalPlan) -> int:
    return plan.epochs if phase.epochs is None else phase.epochs


def _part(value: Any, whole: Tensor, clients: int) -> Any:
    """Return the first clients' part of an optimiser's state: stacked like the weights, or common to all."""
    stacked = isinstance(value, Tensor) and value.shape == whole.shape
    return value[:clients] if stacked else value.clone() if isinstance(value, Tensor) else value


class _View(NamedTuple):
    """The first clients of a stack: leaves that share its memory, and per update what is trained, and how."""

    stack: _Stack
    leaves: Tensors
    chosen: list[Tensors]
    optimizers: list[torch.optim.Optimizer]


def receive(
    executor: Fused,
    group: Sequence[str],
    messages: Messages | None,
    round: int,
    *,
    deliver: bool,
    begin: bool = False,
) -> tuple[list[Local], _Stack]:
    """Let every client of a group unpack its broadcast, and ``begin`` to train; return all they hold, stacked."""
    kind = executor.clients.members[group[0]].kind
    model = executor.clients.models[kind]
    parameters = {n: p.new_empty(len(group), *p.shape) for n, p in model.named_parameters()}
    buffers = {n: b.new_empty(len(group), *b.shape) for n, b in model.named_buffers()}
    found = []
    for index, name in enumerate(group):
        with executor.clients.visit(name, keep=deliver) as client, torch.no_grad():
            message = messages[name] if messages else None
            local = executor.visitor.receive(client, message, round, deliver=deliver)
            if begin:
                executor.visitor.method.begin(local)
            for n, tensor in [*client.model.named_parameters(), *client.model.named_buffers()]:
                (parameters if n in parameters else buffers)[n][index].copy_(tensor)
            found.append(local)
    received, state = stack([local.received for local in found]), stack([local.state for local in found])
    return found, _Stack(parameters, buffers, received, state)


def put_back(client: Client, local: Local, tensors: Tensors) -> None:
    """Give a client what it has become."""
    client.state, client.received = local.state, local.received
    with torch.no_grad():
        for n, tensor in [*client.model.named_parameters(), *client.model.named_buffers()]:
            tensor.copy_(tensors[n])


@torch.no_grad()
def forward_all(
    bare: SplitModel, stacked: _Stack, parts: Sequence[Samples], use: Callable[[int, Output, Batch], None]
) -> None:
    """Run all samples through their clients' models in eval mode; ``use`` gets each client's unpadded batches."""
    bare.eval()

    def outputs(parameters: Tensors, x: Tensor) -> Output:
        with WithBatchingRules():
            result: Output = functional_call(bare, parameters, (x,))
        return result

    for batch, sizes in evaluation_batches(parts, next(iter(stacked.parameters.values())).dtype):
        output = vmap(outputs, randomness="error")(stacked.parameters | stacked.buffers, batch.x)
        for c, size in enumerate(sizes):
            if size:
                own = type(output)(*(part[c, :size] for part in output))
                use(c, own, Batch(batch.x[c, :size], batch.y[c, :size]))


def evaluation_batches(parts: Sequence[Samples], dtype: torch.dtype) -> Iterator[tuple[Batch, list[int]]]:
    """Yield ``(C, B)`` batches in order, and how many of each client's rows are no padding."""
    pile = Pile(parts)
    rows = [list(torch.arange(n).split(EVALUATION_BATCH)) if n else [] for n in pile.lengths]
    places, _, counts = pile.places(rows)
    for t in range(places.shape[1]):
        sizes = [own[t] if len(own) > t else 0 for own in counts]
        where = places[:, t, : max(sizes)]
        yield Batch(normalise(pile.x[where], dtype), pile.y[where]), sizes


@torch.no_grad()
def _evaluate(executor: Fused, group: Sequence[str], messages: Messages | None, round: int) -> list[Evaluated]:
    """Score a group by every rule of the method."""
    start = time.perf_counter()
    method = executor.visitor.method
    locals_, stacked = receive(executor, group, messages, round, deliver=messages is not None)
    members = [executor.clients.members[name] for name in group]
    bare = executor.skeletons[members[0].kind].eval()
    test = _score(method, bare, stacked, [m.test for m in members])
    nothing = members[0].test.x[:0], members[0].test.y[:0]
    validation = _score(method, bare, stacked, [m.validation or Samples(*nothing) for m in members])
    seconds = (time.perf_counter() - start) / len(group)
    return [
        Evaluated(
            local.name,
            test[c],
            len(member.test),
            seconds,
            (validation[c], len(member.validation)) if member.validation else ({}, 0),
        )
        for c, (local, member) in enumerate(zip(locals_, members, strict=True))
    ]


class _Prediction(nn.Module):
    """A method's predictions as a module, for ``functional_call``."""

    def __init__(self, model: SplitModel, method: Method) -> None:
        super().__init__()
        self.model = model
        self.method = method

    def forward(self, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        return self.method.predict(self.model, batch, received, state)


def _score(method: Method, bare: SplitModel, stacked: _Stack, parts: Sequence[Samples]) -> list[dict[str, int]]:
    """Return, per client and rule, how many samples are classified correctly."""
    prediction = _Prediction(bare, method)

    def one(tensors: Tensors, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        with WithBatchingRules():
            found: Tensors = functional_call(prediction, tensors, (batch, received, state))
        return found

    dims = (0, Batch(0, 0, None), 0, 0)  # type: ignore[arg-type]
    together = vmap(one, in_dims=dims, randomness="error")
    tensors = {f"model.{n}": t for n, t in (stacked.parameters | stacked.buffers).items()}
    device = next(iter(stacked.parameters.values())).device
    correct = {rule: torch.zeros(len(parts), dtype=torch.int64, device=device) for rule in method.rules}
    dtype = next(iter(stacked.parameters.values())).dtype
    for batch, sizes in evaluation_batches(parts, dtype):
        real = torch.arange(batch.y.shape[1], device=device) < torch.tensor(sizes, device=device)[:, None]
        for rule, classes in together(tensors, batch, stacked.received, stacked.state).items():
            correct[rule] += ((classes == batch.y) & real).sum(1)
    return [{rule: int(counts[c]) for rule, counts in correct.items()} for c in range(len(parts))]


def bytes_per_client(model: SplitModel, samples: Samples, plan: LocalPlan) -> int:
    """Estimate what a client adds to a stack: weights, gradients, the optimiser's state, activations of a batch."""
    weights = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    activations = 0

    def add(_module: nn.Module, _inputs: Any, output: Any) -> None:
        nonlocal activations
        if isinstance(output, Tensor):
            activations += output.numel() * output.element_size()

    leaves = [m for m in model.modules() if not list(m.children())]
    hooks = [m.register_forward_hook(add) for m in leaves]
    training = model.training
    try:
        with torch.no_grad():
            parameter = next(model.parameters())
            for network in (model, *(e for e in model.extras.values() if isinstance(e, type(model)))):
                network.eval()(parameter.new_zeros(1, *samples.x.shape[1:]))
    finally:
        model.train(training)
        for hook in hooks:
            hook.remove()
    # Autograd keeps about one tensor per layer, and its backward pass a second one.
    return 4 * weights + 2 * activations * max(plan.batch_size, EVALUATION_BATCH // 2)
