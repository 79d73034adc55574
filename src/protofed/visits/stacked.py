"""Steps of many clients at once: stacked weights, and losses vectorised by ``torch.func.vmap``.

A loss is written for one client. Here it is evaluated once for many: the gradient of the sum of the clients' losses
with respect to one client's weights is exactly that client's gradient. Clients are sorted by their number of steps,
so that those with fewer batches drop off the end of the stack as they finish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from protofed.methods.contract import Batch, Local, Method, Output, Phase, SplitModel, Tensors, Update, predict
from protofed.samples import Samples
from protofed.visits.batches import EVALUATION_BATCH, add_up, normalise
from protofed.visits.client import LocalPlan, balance
from protofed.visits.plain import PlainSteps, clip, gradients_of, select_trained
from protofed.visits.roster import versions
from protofed.visits.stacking import (
    PooledSamples,
    StackingError,
    WithBatchingRules,
    first,
    list_padded,
    stack,
    unstack,
)
from protofed.visits.visit import Steps

ELEMENTWISE = {"SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "RMSprop"}
"""Optimisers of ``torch.optim`` that treat every weight separately, so that stacking changes nothing."""
TOLERANCE = 1e-2
"""Maximum relative difference between a first gradient and that of plain autograd: far more than rounding causes
(about 1e-6, with TF32 1e-3), far less than a mistake."""


class StackedSteps(Steps):
    """Steps of a group of clients; see :class:`~protofed.visits.visit.Steps`.

    Args:
        model: Of the architecture, on the device.
        bare: Skeleton of the model (:func:`~protofed.visits.stacking.skeleton`).
        compared: Losses whose first step has been compared with plain autograd, to which this object adds.

    Every method raises RuntimeError (from ``vmap``, or a StackingError) if something cannot be vectorised.
    """

    def __init__(
        self, method: Method, model: SplitModel, bare: SplitModel, clients: int, compared: set[Any]
    ) -> None:
        self.method = method
        self.working = model
        self.bare = bare
        self.clients = clients
        self.compared = compared
        self.phases = 0
        self.order = list(range(clients))
        self.stack = _Stack(
            {n: p.new_empty(clients, *p.shape) for n, p in model.named_parameters()},
            {n: b.new_empty(clients, *b.shape) for n, b in model.named_buffers()},
            {},
            {},
        )
        self.padding = list_padded(bare)
        self.passes_alone = faster_alone(model)
        self.sums: dict[str, Tensor] = {}
        self.samples: dict[str, Tensor] = {}
        self.sound: Tensor | None = None  # the clients all of whose terms have been finite so far

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return next(iter(self.stack.parameters.values())).dtype

    def take(self, client: int, model: SplitModel) -> None:
        """Start from the present weights of ``model``."""
        place = self.order.index(client)
        with torch.no_grad():
            for mine, theirs in self._pairs(model):
                mine[place].copy_(theirs)

    @contextmanager
    def model(self, client: int) -> Iterator[SplitModel]:
        """Lend the working model with the client's present weights; changes to them are kept."""
        place = self.order.index(client)
        with torch.no_grad():
            for mine, theirs in self._pairs(self.working):
                theirs.copy_(mine[place])
        before = versions(self.working)
        yield self.working
        if versions(self.working) != before:
            self.take(client, self.working)

    def begin(self, phase: Phase, plan: LocalPlan, data: Sequence[Samples], locals_: Sequence[Local]) -> None:
        """Begin a phase of training."""
        if plan.private is not None:
            raise StackingError("DP-SGD computes with the samples of one client at a time")
        self.phase, self.plan, self.locals = phase, plan, list(locals_)
        self.phases += 1
        self.pool = PooledSamples(data)
        weighted = plan.class_weights and phase.source is None
        K = self.method.task.num_classes
        self.balance = torch.stack([balance(own.counts(K)) for own in data]) if weighted else None
        self.bare.train()
        statistics = self.method.statistics if phase.source is None else None
        during = statistics.of if statistics and statistics.when == "during" else None
        self.losses_of = [_StackedLoss(self.bare, update, during) for update in phase.updates]
        self.views: dict[int, _View] = {}
        self.arranged = False

    def epoch(self, rows: Sequence[Sequence[Tensor]]) -> list[Tensors]:
        """Run the steps of an epoch."""
        if not self.arranged:  # later epochs have as many batches as the first
            self._arrange([len(own) for own in rows])
        places, weights, counts = self.pool.places(rows)
        places, weights = places[self.order], weights[self.order]
        counts = [counts[client] for client in self.order]
        sums: Tensors = {}
        for t in range(places.shape[1]):
            sizes = [own[t] for own in counts if len(own) > t]
            most, active = max(sizes), len(sizes)
            where = places[:active, t, :most]
            x, y = self.pool.x[where], self.pool.y[where]
            weight = None if min(sizes) == most else weights[:active, t, :most].to(self.dtype)
            importance = None
            if self.balance is not None:
                importance = self.balance[self.order[:active]].gather(1, y).to(self.dtype)
            batch = Batch(x if self.phase.source else normalise(x, self.dtype), y, weight, importance)
            for name, value in self._step(batch, sizes).items():
                if name not in sums:
                    sums[name] = value.new_zeros(len(counts), *value.shape[1:])
                sums[name][:active] += value
        return [unstack(sums, self.order.index(client)) if rows[client] else {} for client in range(self.clients)]

    def refresh(self) -> None:
        """Stack the clients' method tensors again."""
        ordered = [self.locals[client] for client in self.order]
        self.stack.received = stack([local.received for local in ordered])
        self.stack.state = stack([local.state for local in ordered])
        for clients, view in self.views.items():
            view.stack.received = first(self.stack.received, clients)
            view.stack.state = first(self.stack.state, clients)

    def losses(self) -> list[dict[str, float]]:
        """Return each client's mean losses."""
        return [
            {n: float(s[c] / self.samples[n][c]) for n, s in self.sums.items() if self.samples[n][c]}
            for c in range(self.clients)
        ]

    @torch.no_grad()
    def statistics(self, data: Sequence[Samples]) -> list[Tensors]:
        """Return each client's statistics of its data, in eval mode."""
        if self.passes_alone:
            return [alone.statistics([own])[0] for alone, own in zip(self._each(), data, strict=True)]
        self.bare.eval()

        def outputs(tensors: Tensors, x: Tensor) -> Output:
            with WithBatchingRules():
                result: Output = functional_call(self.bare, tensors, (x,))
            return result

        found: list[Tensors] = [{} for _ in data]
        assert self.method.statistics is not None
        tensors = self._in_group_order(self.stack.parameters | self.stack.buffers)
        for batch, sizes in evaluation_batches(data, self.dtype):
            output = vmap(outputs, randomness="error")(tensors, batch.x)
            for c, size in enumerate(sizes):
                if size:
                    own = type(output)(*(part[c, :size] for part in output))
                    add_up(found[c], self.method.statistics.of(own, Batch(batch.x[c, :size], batch.y[c, :size])))
        return found

    @torch.no_grad()
    def score(self, data: Sequence[Samples], locals_: Sequence[Local]) -> list[Tensors]:
        """Return the number of correctly classified samples per client, rule and class."""
        if self.passes_alone:
            own = zip(self._each(), data, locals_, strict=True)
            return [alone.score([samples], [local])[0] for alone, samples, local in own]
        prediction = _Prediction(self.bare.eval(), self.method)

        def one(tensors: Tensors, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
            with WithBatchingRules():
                found: Tensors = functional_call(prediction, tensors, (batch, received, state))
            return found

        dims = (0, Batch(0, 0, None), 0, 0)  # type: ignore[arg-type]
        together = vmap(one, in_dims=dims, randomness="error")
        tensors = self._in_group_order(self.stack.parameters | self.stack.buffers)
        device = next(iter(tensors.values())).device
        tensors = {f"model.{n}": t for n, t in tensors.items()}
        received, state = stack([local.received for local in locals_]), stack([local.state for local in locals_])
        shape = len(data), self.method.task.num_classes
        correct = {r: torch.zeros(shape, dtype=torch.int64, device=device) for r in self.method.rules}
        for batch, sizes in evaluation_batches(data, self.dtype):
            real = torch.arange(batch.y.shape[1], device=device) < torch.tensor(sizes, device=device)[:, None]
            for rule, classes in together(tensors, batch, received, state).items():
                correct[rule].scatter_add_(1, batch.y, ((classes == batch.y) & real).long())
        correct = {rule: numbers.cpu() for rule, numbers in correct.items()}
        return [unstack(correct, c) for c in range(len(data))]

    def _each(self) -> Iterator[PlainSteps]:
        for client in range(self.clients):
            with self.model(client) as model:
                alone = PlainSteps(self.method)
                alone.take(0, model)
                yield alone

    def _pairs(self, model: SplitModel) -> Iterator[tuple[Tensor, Tensor]]:
        for name, parameter in model.named_parameters():
            yield self.stack.parameters[name], parameter
        for name, buffer in model.named_buffers():
            yield self.stack.buffers[name], buffer

    def _in_group_order(self, tensors: Tensors) -> Tensors:
        if self.order == sorted(self.order):
            return tensors
        back = [self.order.index(client) for client in range(self.clients)]
        return {n: t[back] for n, t in tensors.items()}

    def _arrange(self, steps: Sequence[int]) -> None:
        """Sort the stack by the number of steps, in descending order."""
        self.arranged = True
        for update in self.phase.updates:
            name = update.optimizer.get("name", self.plan.optimizer)
            if name not in ELEMENTWISE:
                raise StackingError(f"the optimiser {name} looks at more than one weight at a time")
            if name != "SGD" and len(set(steps)) > 1 and self.phase.passes(self.plan.epochs) > 1:
                # Their state counts steps, and the counts would differ between clients.
                raise StackingError(
                    f"the optimiser {name} counts steps, and clients have different numbers of them"
                )
        new = sorted(range(self.clients), key=lambda client: -steps[client])
        if new != self.order:
            index = [self.order.index(client) for client in new]
            self.stack.parameters = {n: t[index] for n, t in self.stack.parameters.items()}
            self.stack.buffers = {n: t[index] for n, t in self.stack.buffers.items()}
            self.order = new
        self.refresh()

    def _step(self, batch: Batch, sizes: list[int]) -> Tensors:
        """Run one optimiser step per update for all clients that still have batches; return their statistics."""
        view = self._view(len(sizes))
        statistics: Tensors = {}
        for number, loss in enumerate(self.losses_of):
            self._check_padding(loss, view, batch)
            key = self.phases, number, loss.update.name
            plain = None if key in self.compared else self._plain(loss, view, batch, sizes[0])
            terms, found = self._losses(loss, view, batch)
            total = reduce(torch.add, terms.values()).sum()
            chosen = list(view.chosen[number].values())
            gradients = gradients_of(total, chosen)
            if plain is not None:
                _compare(plain, terms, view.chosen[number], gradients)
                self.compared.add(key)
            if loss.update.clip is not None:
                gradients = clip(list(view.chosen[number]), gradients, loss.update.clip, stacked=True)
            for parameter, gradient in zip(chosen, gradients, strict=True):
                parameter.grad = gradient
            view.optimizers[number].step()
            self._count(terms, sizes)
            statistics = statistics or found
        return statistics

    def _plain(self, loss: _StackedLoss, view: _View, batch: Batch, size: int) -> tuple[Tensors, Tensors]:
        """Return loss terms and gradients of the first client of the stack, by plain autograd on its own rows."""
        with self.model(self.order[0]) as model:
            model.train()
            buffers = {n: b.clone() for n, b in model.named_buffers()}
            importance = None if batch.importance is None else batch.importance[0, :size]
            own = Batch(batch.x[0, :size], batch.y[0, :size], importance=importance)
            received, state = unstack(view.stack.received, 0), unstack(view.stack.state, 0)
            terms, _ = loss.update.terms(model, own, received, state)
            chosen = select_trained(model, loss.update)
            gradients = gradients_of(reduce(torch.add, terms.values()), list(chosen.values()))
            with torch.no_grad():
                for name, buffer in model.named_buffers():
                    buffer.copy_(buffers[name])
        found = {n: g for n, g in zip(chosen, gradients, strict=True) if g is not None}
        return {n: t.detach() for n, t in terms.items()}, found

    def _check_padding(self, loss: _StackedLoss, view: _View, batch: Batch) -> None:
        """Refuse a method whose loss or statistics depend on rows of weight 0; checked once per loss."""
        if batch.weight is None or loss.checked:
            return
        loss.checked = True
        padding = (batch.weight == 0).view(*batch.weight.shape, *[1] * (batch.x.dim() - 2))
        found = []
        for x in (batch.x, batch.x.masked_fill(padding, 3.0)):
            stacked = replace(view.stack, buffers={n: b.clone() for n, b in view.stack.buffers.items()})
            terms, statistics = self._losses(loss, view._replace(stack=stacked), batch._replace(x=x))
            found.append({n: t.detach() for n, t in (terms | statistics).items()})
        for name, value in found[0].items():
            if not torch.allclose(value, found[1][name], rtol=1e-3, atol=1e-5, equal_nan=True):
                raise StackingError(
                    f"{name!r} counts padded samples: the method should use batch.mean or batch.weight"
                )

    def _losses(self, loss: _StackedLoss, view: _View, batch: Batch) -> tuple[Tensors, Tensors]:
        """Return ``(C,)`` terms and ``(C, …)`` statistics."""
        buffers = view.stack.buffers
        rows = dict.fromkeys(
            self.padding, batch.x.new_zeros(len(batch.y), 0) if batch.weight is None else batch.weight
        )

        def one(parameters: Tensors, buffers: Tensors, batch: Batch, received: Tensors, state: Tensors) -> Any:
            tensors = {f"model.{n}": t for n, t in (parameters | buffers).items()}
            with WithBatchingRules():
                return functional_call(loss, tensors, (batch, received, state))

        # Noise comes from keys; vmap refuses any other random draw.
        dims = (0, 0, Batch(*(None if part is None else 0 for part in batch)), 0, 0)  # type: ignore[arg-type]
        together = vmap(one, in_dims=dims, randomness="error")
        found: tuple[Tensors, Tensors] = together(
            view.leaves, buffers | rows, batch, view.stack.received, view.stack.state
        )
        return found

    def _count(self, terms: Tensors, sizes: list[int]) -> None:
        """Add sample-weighted losses, in the order of the group."""
        device = next(iter(terms.values())).device
        places = torch.tensor(self.order[: len(sizes)], device=device)
        number = torch.tensor(sizes, dtype=torch.float32, device=device)
        if self.sound is None:
            self.sound = torch.ones(self.clients, dtype=torch.bool, device=device)
        counts, finite = self.sound[places], self.sound[places]
        for name, term in terms.items():
            if name not in self.sums:
                self.sums[name] = term.new_zeros(self.clients).detach()
                self.samples[name] = torch.zeros(self.clients, device=device)
            self.sums[name][places] += torch.where(counts, term.detach() * number.to(term.dtype), 0)
            self.samples[name][places] += number * counts
            finite = finite & term.isfinite()
        self.sound[places] = finite

    def _view(self, clients: int) -> _View:
        """Return leaves and optimisers of the first ``clients``, which share memory with the whole stack."""
        if clients in self.views:
            return self.views[clients]
        own = self.stack.first(clients)
        leaves = {n: t.detach().requires_grad_() for n, t in own.parameters.items()}
        view = _View(own, leaves, [], [])
        larger = [view for number, view in self.views.items() if number > clients]
        last = larger[-1] if larger else None  # stacks only shrink, so this view has done all steps so far
        for number, update in enumerate(self.phase.updates):
            chosen = {n: leaves[n] for n in select_trained(self.working, update)}
            optimizer = self.plan.build(chosen.values(), update.optimizer)
            if last is not None:
                for name, mine in chosen.items():
                    theirs = last.chosen[number][name]
                    state = last.optimizers[number].state.get(theirs, {})
                    optimizer.state[mine] = {k: _part(v, theirs, clients) for k, v in state.items()}
            view.chosen.append(chosen)
            view.optimizers.append(optimizer)
        self.views[clients] = view
        return view


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


class _View(NamedTuple):
    """The first clients of a stack: leaves that share its memory; trained tensors and optimiser per update."""

    stack: _Stack
    leaves: Tensors
    chosen: list[Tensors]
    optimizers: list[torch.optim.Optimizer]


class _StackedLoss(nn.Module):
    """A loss as a module for ``functional_call``, with the statistics of the model's output."""

    def __init__(
        self, model: SplitModel, update: Update, statistics: Callable[[Output, Batch], Tensors] | None
    ) -> None:
        super().__init__()
        self.model = model
        self.update = update
        self.statistics = statistics
        self.checked = False

    def forward(self, batch: Batch, received: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        terms, output = self.update.terms(self.model, batch, received, state)
        if self.statistics is None or output is None:
            return terms, {}
        return terms, {n: t.detach() for n, t in self.statistics(output, batch).items()}


class _Prediction(nn.Module):
    """A method's predictions as a module for ``functional_call``."""

    def __init__(self, model: SplitModel, method: Method) -> None:
        super().__init__()
        self.model = model
        self.method = method

    def forward(self, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        return predict(self.method, self.model, batch, received, state)


def faster_alone(model: nn.Module) -> bool:
    """Return whether passes over all samples are faster client by client than stacked.

    Stacked, a convolution has a group per client, for which CPUs have no fast kernel. In steps of a few samples
    that may cost less than separate steps do; a pass over hundreds takes four times as long
    (``papers/studies/speed.md``).
    """
    convolutions = [m for m in model.modules() if isinstance(m, (nn.Conv1d, nn.Conv2d, nn.Conv3d))]
    return bool(convolutions) and all(m.weight.device.type == "cpu" for m in convolutions)


def evaluation_batches(parts: Sequence[Samples], dtype: torch.dtype) -> Iterator[tuple[Batch, list[int]]]:
    """Yield ``(C, B)`` batches of several clients in order, with each client's rows that are not padding."""
    pool = PooledSamples(parts)
    rows = [list(torch.arange(n).split(EVALUATION_BATCH)) if n else [] for n in pool.lengths]
    places, _, counts = pool.places(rows)
    for t in range(places.shape[1]):
        sizes = [own[t] if len(own) > t else 0 for own in counts]
        where = places[:, t, : max(sizes)]
        yield Batch(normalise(pool.x[where], dtype), pool.y[where]), sizes


def bytes_per_client(model: SplitModel, shape: Sequence[int], batch_size: int) -> int:
    """Estimate the bytes that a client adds to a stack: weights, gradients, optimiser state, activations."""
    weights = sum(t.numel() * t.element_size() for t in model.state_dict().values())
    networks = [model, *(e for e in model.extras.values() if isinstance(e, type(model)))]
    activations = sum(output.nbytes for network in networks for _, output in network.trace(shape))
    # Autograd keeps about one tensor per layer, and its backward pass a second one.
    result: int = 4 * weights + 2 * activations * max(batch_size, EVALUATION_BATCH // 2)
    return result


def _compare(
    plain: tuple[Tensors, Tensors], terms: Tensors, chosen: Tensors, gradients: Sequence[Tensor | None]
) -> None:
    """Raise StackingError unless the first client's terms and gradients are those of plain autograd."""
    expected_terms, expected = plain
    for name, term in expected_terms.items():
        if not torch.allclose(terms[name][0].detach(), term, rtol=TOLERANCE, atol=1e-5, equal_nan=True):
            raise StackingError(f"stacked, the first step gives another {name!r} than alone")
    for (name, _), gradient in zip(chosen.items(), gradients, strict=True):
        own = expected.get(name)
        if own is None or gradient is None or not own.isfinite().all():
            continue
        if (gradient[0] - own).norm() > TOLERANCE * own.norm() + 1e-6:
            raise StackingError(f"stacked, the first step gives {name} another gradient than alone")


def _part(value: Any, whole: Tensor, clients: int) -> Any:
    """Return the first clients' part of a value of an optimiser's state, stacked or common to all."""
    stacked = isinstance(value, Tensor) and value.shape == whole.shape
    return value[:clients] if stacked else value.clone() if isinstance(value, Tensor) else value
