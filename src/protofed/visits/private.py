"""DP-SGD (Abadi et al., "Deep Learning with Differential Privacy", CCS 2016) and private statistics of a client.

A sample's gradient is that of the method's loss on a batch of this sample alone, so it depends on no other sample,
whatever the loss does with a batch. ``torch.func.vmap`` computes those of a batch together. Gradients are clipped,
added up, and noise is added to their sum. A sample is drawn into each batch by a coin of its own (Poisson
sampling), on which the accountant's amplification rests. Neighbours are data with and without one sample, so that a
sum moves by the norm of one gradient.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from protofed.compute.normal import draw_rounded_normal
from protofed.compute.seeding import uniform_from_system
from protofed.errors import ConfigError
from protofed.methods.contract import Batch, Local, Method, Output, Phase, SplitModel, Tensors, Update
from protofed.samples import Samples
from protofed.visits.batches import batches

AT_ONCE = 2**22
"""Numbers of single samples' gradients that are held at a time: 16 MiB stay in a processor's cache."""
SURE = 2.0
"""A class counts as present if its noisy number of samples exceeds so many standard deviations of the noise."""
FINE = 20  #: Binary digits of the grid on which a node adds noise, below its standard deviation
SHORT = 1 - 2.0**-32
"""Share of a norm to which a node shortens vectors, so that rounding in float64 never leaves one too long."""
RELEASE = "release."
"""Beginning of the names, in a client's state, of the noisy statistics that it sends in every round."""
COUNTS = "private counts"
"""Name, in a client's state, of the noisy numbers of samples per class that stand for the true ones."""


@dataclass(frozen=True)
class Private:
    """Local training that hides whether a single sample was there."""

    clip: float  # largest norm ``C`` of a sample's gradient
    noise: float  # multiplier ``z`` of the steps
    features: float  # largest norm of a sample's contribution to a statistic
    means: float  # noise multiplier of statistics and of the numbers of samples per class
    secret: bool = False  # random numbers come from the operating system instead of the experiment's seed
    masked: bool = False  # the noise of statistics is added later, under the mask of secure aggregation


@dataclass
class Noise:
    """Random numbers of one client in one round, for a purpose.

    Args:
        generator: None for the operating system.
        dtype: In which the generator draws; None for torch's default.
    """

    generator: torch.Generator | None
    dtype: torch.dtype | None = None

    @classmethod
    def of(cls, local: Local, private: Private, purpose: str) -> Noise:
        """Return the numbers of a client in its present round."""
        return cls(None if private.secret else local.generator(f"private {purpose}"))

    def step(self, deviation: float) -> float:
        """Return the step of the grid of contributions; 0 for none: in a simulation, or without noise.

        Sums of multiples of a power of two are exact, and so is rounded noise on them
        (:mod:`protofed.compute.normal`): the result is that of real numbers, rounded, whose low bits tell nothing.
        """
        known = self.generator is not None or not deviation
        return 0.0 if known else 2.0 ** (math.floor(math.log2(deviation)) - FINE)

    def add(self, total: Tensor, deviation: float) -> Tensor:
        """Return a sum with noise.

        Args:
            total: Sum of contributions on the grid of :meth:`step`, if there is one.
        """
        if not deviation:
            return total
        if self.generator is None:
            step = self.step(deviation)
            noise = draw_rounded_normal(total.numel(), deviation / step).double() * step
            return total + noise.view(total.shape).to(total.device)
        return total + deviation * torch.randn(total.shape, generator=self.generator, dtype=self.dtype).to(total)

    def rows(self, samples: int, size: int) -> list[Tensor]:
        """Return the rows of the ``⌈n/B⌉`` batches of an epoch, each row in each with probability ``B/n``."""
        shape = -(-samples // size), samples
        if self.generator is None:
            coins = uniform_from_system(shape[0] * shape[1]).reshape(shape)
        else:
            coins = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        return [row.nonzero().squeeze(-1) for row in coins < rate(samples, size)]


def rate(samples: int, size: int) -> float:
    """Return the probability with which a sample is in a batch: ``B/n``, at most 1."""
    return min(1.0, size / max(1, samples))


def steps(phases: tuple[Phase, ...], epochs: int, samples: int, size: int) -> int:
    """Return the number of noisy steps of a round."""
    private = [phase for phase in phases if not phase.local_only]
    return sum(phase.passes(epochs) * len(phase.updates) for phase in private) * -(-samples // size)


class _Loss(nn.Module):
    """A loss as a module for ``functional_call``."""

    def __init__(self, model: SplitModel, update: Update) -> None:
        super().__init__()
        self.model = model
        self.update = update

    def forward(self, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        return self.update.terms(self.model, batch, received, state)[0]


def sum_clipped(
    model: SplitModel,
    update: Update,
    chosen: Mapping[str, Tensor],
    batch: Batch,
    local: Local,
    clip: float,
    step: float = 0.0,
) -> tuple[Tensors, Tensors]:
    """Return the sum of the clipped gradients of a batch's samples, and the means of their losses.

    Args:
        chosen: Trained weights by name; a gradient's norm is over all of them.
        batch: May be empty.
        clip: Largest norm.
        step: Step of the grid to which clipped gradients are rounded, towards zero and in float64; 0 for none.
    """
    loss = _Loss(model, update)
    weights = {f"model.{name}": parameter.detach() for name, parameter in chosen.items()}
    if not weights:
        return {}, {}
    dtype = torch.float64 if step else None
    sums = {name: torch.zeros_like(parameter, dtype=dtype) for name, parameter in weights.items()}
    means: Tensors = {}

    def one(weights: Tensors, x: Tensor, y: Tensor, importance: Tensor) -> tuple[Tensor, Tensors]:
        alone = Batch(x.unsqueeze(0), y.unsqueeze(0), importance=importance.unsqueeze(0))
        terms = functional_call(loss, weights, (alone, local.received, local.state))
        return reduce(torch.add, terms.values()), terms

    together = vmap(grad(one, has_aux=True), in_dims=(None, 0, 0, 0), randomness="different")
    importance = torch.ones_like(batch.y, dtype=batch.x.dtype) if batch.importance is None else batch.importance
    size = max(1, AT_ONCE // max(1, sum(t.numel() for t in weights.values())))
    for start in range(0, len(batch.y), size):
        part = slice(start, start + size)
        try:
            gradients, terms = together(weights, batch.x[part], batch.y[part], importance[part])
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0][:160]
            raise ConfigError(f"privacy.mode=sample: no gradients of single samples: {reason}") from None
        if step:
            gradients = {name: g.double() for name, g in gradients.items()}
        rows = {name: g.reshape(len(g), -1) for name, g in gradients.items()}  # of a scalar weight, too
        norms = torch.stack([torch.linalg.vector_norm(r, dim=1) for r in rows.values()]).norm(dim=0)
        factors = (clip / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1)
        # A gradient that is not finite has no direction; it counts as none.
        finite = norms.isfinite()
        factors = factors.where(finite, 0.0)
        for name, gradient in rows.items():
            known = gradient if finite.all() else gradient.nan_to_num(0.0, 0.0, 0.0)
            sums[name] += (_on_grid(factors, known, step) if step else factors @ known).view_as(sums[name])
        for name, term in terms.items():
            means[name] = means.get(name, 0.0) + term.detach().sum() / len(batch.y)
    return {name.removeprefix("model."): total for name, total in sums.items()}, means


def _on_grid(factors: Tensor, rows: Tensor, step: float) -> Tensor:
    """Return ``Σ_b f_b·r_b`` of ``(B,)`` and ``(B, n)`` in float64, each term rounded towards zero to a grid."""
    return (factors.mul(SHORT)[:, None] * rows).div_(step).trunc_().sum(0) * step


@torch.no_grad()
def private_statistics(
    model: SplitModel, method: Method, local: Local, samples: Samples, private: Private
) -> Tensors:
    """Return noisy statistics of a client's data, in eval mode.

    What a sample adds to a statistic of several dimensions has a norm of at most ``features``, and to one number
    per class at most 1. Divided by these bounds, all statistics together are one vector, to which a sample adds at
    most ``√T`` for ``T`` statistics. Classes whose noisy number of samples (``counts``) may be noise become empty.

    In :attr:`~protofed.methods.traits.Protection.dp_statistics` all bounds are 1, and each statistic is
    multiplied by its factor ``w`` before the noise and divided by it afterwards, so that a sample adds at most
    ``√Σw²``. No class becomes empty, since the sum over clients is to decide.
    """
    model.eval()
    totals: Tensors = {}
    dtype = next(model.parameters()).dtype
    noise, release = Noise.of(local, private, "statistics"), method.protection.dp_statistics
    statistics = method.statistics
    assert statistics is not None
    features, multiplier = 1.0 if release else private.features, 0.0 if private.masked else private.means

    def deviation(names: Iterable[str], name: str, several: bool) -> float:
        together = math.hypot(*(release.get(n, 1.0) for n in names))
        return multiplier * together / release.get(name, 1.0) * (features if several else 1.0)

    def one(output: Output, y: Tensor) -> Tensors:
        alone = type(output)(*(part.unsqueeze(0) for part in output))
        return statistics.of(alone, Batch(y.unsqueeze(0), y.unsqueeze(0)))

    for batch in batches(samples, model):
        each = {name: v for name, v in vmap(one)(model(batch.x), batch.y).items() if v[0].numel()}
        for name, values in each.items():
            bound = features if values.dim() > 2 else 1.0
            step = noise.step(deviation(each, name, values.dim() > 2))
            values = values.double() if step else values
            length = values.flatten(1).norm(dim=1).clamp(min=torch.finfo(values.dtype).tiny)
            factors = (bound / length).clamp(max=1).where(length.isfinite(), 0.0)
            known = values.nan_to_num(0.0, 0.0, 0.0)
            if step:
                added = _on_grid(factors, known.flatten(1), step).view(known.shape[1:])
            else:
                added = torch.einsum("b,b...->...", factors, known)
            totals[name] = totals[name] + added if name in totals else added
    for name in sorted(totals):
        spread = deviation(totals, name, totals[name].dim() > 1)
        totals[name] = noise.add(totals[name], spread).to(torch.float64 if release else dtype)
    if "counts" in totals and not release:
        sure = totals["counts"] > max(SURE * deviation(totals, "counts", False), 0.5)
        totals = {n: t * sure.reshape(-1, *[1] * (t.dim() - 1)) for n, t in totals.items()}
    return totals


def private_counts(counts: Tensor, private: Private, generator: torch.Generator) -> Tensor:
    """Return noisy numbers of samples per class, ``(K,)`` int64, at least 0 and at least 1 together.

    Classes whose number may be noise become empty; if all would, the largest has one sample, since a client without
    any would have no weight.
    """
    noise = Noise(None if private.secret else generator)
    # A sample's 1, rounded towards zero to the grid: 0 where the grid is coarser.
    noisy = noise.add(counts.double() * (noise.step(private.means) <= 1), private.means)
    sure = noisy > max(SURE * private.means, 0.5)
    found = (noisy.round() * sure).long().clamp(min=0)
    if not found.any():
        found[noisy.argmax()] = 1
    return found
