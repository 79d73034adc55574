"""Steps of one client with plain autograd: the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import NamedTuple

import torch
from torch import Tensor

from protofed.methods.contract import Method, Phase, Statistics, Update, predict
from protofed.methods.given import Batch, Local, Output, SplitModel, Tensors
from protofed.samples import Samples
from protofed.visits.batches import EVALUATION_BATCH, add_up, batches, normalise
from protofed.visits.client import LocalPlan, balance
from protofed.visits.private import Noise, sum_clipped
from protofed.visits.visit import Steps

NORMALISED_AT_ONCE = 2**24
"""Size in numbers up to which training data are normalised once per phase instead of batch by batch."""

EPSILON = 1e-6  #: Added to a norm before dividing by it, as ``torch.nn.utils.clip_grad_norm_`` does


class PlainSteps(Steps):
    """Steps of a group of one client; see :class:`~protofed.visits.visit.Steps`."""

    def __init__(self, method: Method) -> None:
        self.method = method
        self.means = _Means()
        self.phases = 0

    def take(self, client: int, model: SplitModel) -> None:
        """Start from the weights of ``model``, which is trained in place."""
        self._model = model

    @contextmanager
    def model(self, client: int) -> Iterator[SplitModel]:
        """Lend the model."""
        yield self._model

    def begin(self, phase: Phase, plan: LocalPlan, data: Sequence[Samples], locals_: Sequence[Local]) -> None:
        """Begin a phase of training."""
        model = self._model
        self.local, self.phase, self.plan = locals_[0], phase, plan
        self.phases += 1
        self.noise = Noise.of(self.local, plan.private, f"steps {self.phases}") if plan.private else None
        statistics = self.method.statistics if phase.source is None else None
        self.during = statistics if statistics and statistics.when == "during" else None
        self.updates = []
        for update in phase.updates:
            chosen = select_trained(model, update)
            self.updates.append(_Update(update, chosen, plan.build(chosen.values(), update.optimizer)))
        self.x, self.y = data[0].x, data[0].y
        weighted = plan.class_weights and phase.source is None
        self.importance = balance(self._counts(data[0]))[self.y] if weighted else None
        if phase.source is None and self.x.numel() <= NORMALISED_AT_ONCE:
            self.x = normalise(self.x, next(model.parameters()).dtype)

    def _counts(self, data: Samples) -> Tensor:
        """Return the numbers of samples per class, noisy ones if training is private."""
        # Phases that stay with the client are not private, and local.counts may be noisy even then.
        counts = data.counts(self.method.task.num_classes) if self.plan.private is None else self.local.counts
        return counts.to(self.y.device)

    def epoch(self, rows: Sequence[Sequence[Tensor]]) -> list[Tensors]:
        """Run the steps of an epoch."""
        self._model.train()
        dtype = next(self._model.parameters()).dtype
        collected = _Totals(self.during) if self.during else None
        for chosen in rows[0]:
            here = chosen.to(self.y.device)
            x = self.x[here] if self.phase.source else normalise(self.x[here], dtype)
            importance = None if self.importance is None else self.importance[here].to(dtype)
            batch = Batch(x, self.y[here], importance=importance)
            output = self._step(batch)
            if collected is not None and output is not None:
                collected.add(output, batch)
        return [collected.totals() if collected else {}]

    def refresh(self) -> None:
        """Do nothing: there are no copies to update."""

    def losses(self) -> list[dict[str, float]]:
        """Return the client's mean losses."""
        return [self.means.means()]

    def statistics(self, data: Sequence[Samples]) -> list[Tensors]:
        """Return the client's statistics of its data, in eval mode."""
        self._model.eval()
        totals: Tensors = {}
        assert self.method.statistics is not None
        with torch.no_grad():
            for batch in batches(data[0], self._model):
                add_up(totals, self.method.statistics.of(self._model(batch.x), batch))
        return [totals]

    def score(self, data: Sequence[Samples], locals_: Sequence[Local]) -> list[Tensors]:
        """Return the number of correctly classified samples per rule and class."""
        self._model.eval()
        local = locals_[0]
        device = data[0].y.device
        K = self.method.task.num_classes
        correct = {rule: torch.zeros(K, dtype=torch.int64, device=device) for rule in self.method.rules}
        for batch in batches(data[0], self._model):
            predicted = predict(self.method, self._model, batch, local.received, local.state)
            for rule, classes in predicted.items():
                correct[rule].index_add_(0, batch.y, (classes == batch.y).long())
        return [{rule: numbers.cpu() for rule, numbers in correct.items()}]

    def _step(self, batch: Batch) -> Output | None:
        """Run one optimiser step per update; return the model's output in the first."""
        if self.plan.private is not None:
            self._private_step(batch)
            return None
        first: Output | None = None
        for update, parameters, optimizer in self.updates:
            terms, output = update.terms(self._model, batch, self.local.received, self.local.state)
            total = reduce(torch.add, terms.values())
            chosen = list(parameters.values())
            gradients = gradients_of(total, chosen)
            if update.clip is not None:
                gradients = clip(list(parameters), gradients, update.clip)
            for parameter, gradient in zip(chosen, gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            self.means.add(terms, len(batch.y))
            first = output if first is None else first
        return first

    def _private_step(self, batch: Batch) -> None:
        """Run one optimiser step per update on clipped gradients with noise, divided by the expected batch size."""
        private, noise = self.plan.private, self.noise
        assert private is not None
        assert noise is not None
        expected = min(self.plan.batch_size, len(self.y))
        deviation = private.noise * private.clip
        step = noise.step(deviation)
        for update, parameters, optimizer in self.updates:
            sums, terms = sum_clipped(self._model, update, parameters, batch, self.local, private.clip, step)
            for name, parameter in parameters.items():
                parameter.grad = (noise.add(sums[name], deviation) / expected).to(parameter)
            optimizer.step()
            self.means.add(terms, len(batch.y))


def select_trained(model: SplitModel, update: Update) -> dict[str, torch.nn.Parameter]:
    """Return the parameters that an update changes, by name: frozen ones are not among them."""
    return {n: p for n, p in model.named_parameters() if p.requires_grad and update.trainable(n)}


def gradients_of(total: Tensor, chosen: Sequence[Tensor]) -> Sequence[Tensor | None]:
    """Return the gradient of a loss for each of some parameters, None where it does not depend on it."""
    if not chosen or not total.requires_grad:
        return [None] * len(chosen)
    return torch.autograd.grad(total, chosen, allow_unused=True)


def network_of(name: str) -> str:
    """Return the network that a parameter belongs to: ``extras.NAME``, or empty for the client's model."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "extras" else ""


def clip(
    names: Sequence[str], gradients: Sequence[Tensor | None], limit: float, *, stacked: bool = False
) -> list[Tensor | None]:
    """Clip each network's gradient to a Euclidean norm of ``limit``.

    Args:
        gradients: None for parameters without one.
        stacked: The first dimension is that of clients, which are clipped separately.
    """
    squares: dict[str, Tensor] = {}
    for name, gradient in zip(names, gradients, strict=True):
        if gradient is not None:
            network, dims = network_of(name), list(range(int(stacked), gradient.dim()))
            square = gradient.square().sum(dims) if dims else gradient.square()
            squares[network] = squares[network] + square if network in squares else square
    scales = {network: (limit / (square.sqrt() + EPSILON)).clamp(max=1) for network, square in squares.items()}

    def shortened(name: str, gradient: Tensor | None) -> Tensor | None:
        if gradient is None:
            return None
        scale = scales[network_of(name)]
        return gradient * scale.reshape([*scale.shape, *[1] * (gradient.dim() - scale.dim())])

    with torch.no_grad():
        return [shortened(name, gradient) for name, gradient in zip(names, gradients, strict=True)]


class _Update(NamedTuple):
    update: Update
    parameters: dict[str, torch.nn.Parameter]
    optimizer: torch.optim.Optimizer


class _Totals:
    """Statistics of the outputs of many steps, computed for several hundred samples at a time."""

    def __init__(self, statistics: Statistics) -> None:
        self.statistics = statistics
        self.sums: Tensors = {}
        self.outputs: list[Output] = []
        self.batches: list[Batch] = []

    def add(self, output: Output, batch: Batch) -> None:
        self.outputs.append(type(output)(*(part.detach() for part in output)))
        self.batches.append(batch)
        if sum(len(b.y) for b in self.batches) >= EVALUATION_BATCH:
            self._compute()

    def totals(self) -> Tensors:
        if self.batches:
            self._compute()
        return self.sums

    @torch.no_grad()
    def _compute(self) -> None:
        output = type(self.outputs[0])(*(torch.cat(parts) for parts in zip(*self.outputs, strict=True)))
        batch = Batch(torch.cat([b.x for b in self.batches]), torch.cat([b.y for b in self.batches]))
        add_up(self.sums, self.statistics.of(output, batch))
        self.outputs, self.batches = [], []


class _Means:
    """Sample-weighted means of loss terms, as :meth:`Steps.losses`, without a device synchronisation per step."""

    def __init__(self) -> None:
        self.steps = 0
        self.terms: dict[str, list[Tensor]] = {}
        self.samples: dict[str, list[tuple[int, int]]] = {}

    def add(self, terms: Tensors, samples: int) -> None:
        for name, term in terms.items():
            self.terms.setdefault(name, []).append(term.detach())
            self.samples.setdefault(name, []).append((self.steps, samples))
        self.steps += 1

    def means(self) -> dict[str, float]:
        values = {name: torch.stack(terms).double().cpu() for name, terms in self.terms.items()}
        places = {name: torch.tensor(steps).T for name, steps in self.samples.items()}
        last = min(
            (int(n) for name, v in values.items() for n in places[name][0, ~v.isfinite()]), default=self.steps
        )
        found = {}
        for name, value in values.items():
            if bool((until := places[name][0] <= last).any()):
                weights = places[name][1, until].double()
                found[name] = float(value[until] @ weights / weights.sum())
        return found
