"""A naive beacon in double precision: sample by sample, written from its specification.

An expert is a network of ``naive``; a beacon for vectors is ``[W1, b1, scale, shift, W2, b2]``: a linear layer,
normalisation of its units within a sample, ReLU, and a linear layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

import naive
from naive import BATCH, SEED, Net
from protofed.compute.seeding import generator


def log_prior(labels: Sequence[int], K: int, rho: float) -> list[float]:
    """``π(y) = log((n_y + ρ)/(n + ρK))``."""
    return [math.log((list(labels).count(y) + rho) / (len(labels) + rho * K)) for y in range(K)]


def beacon(w: Net, x: Tensor) -> Tensor:
    """``h_θ(x)`` of one sample."""
    z = torch.stack([w[0][i] @ x + w[1][i] for i in range(len(w[0]))])
    centred = z - z.sum() / len(z)
    normal = centred / ((centred * centred).sum() / len(z) + 1e-5).sqrt()
    hidden = (normal * w[2] + w[3]).clamp(min=0)
    return torch.stack([w[4][j] @ hidden + w[5][j] for j in range(len(w[4]))])


def log_softmax(z: Tensor) -> Tensor:
    """``log(e^z / Σ e^z)``."""
    return naive.probabilities(z).log()


def balanced(z: Tensor, y: int, prior: Sequence[float], classes: Sequence[int]) -> Tensor:
    """``−log of e^{z_y + π_y} / Σ_{c in classes} e^{z_c + π_c}``."""
    total = sum(math.e ** (z[c] + prior[c]) for c in classes)
    return total.log() - z[y] - prior[y]


def batches(samples, name: str, number: int, phase: int, epochs: int) -> Iterator[list[tuple[Tensor, int]]]:
    """Yield the mini-batches of a phase in the engine's order."""
    for epoch in range(epochs):
        scope = (number, name, phase, epoch)
        order = torch.randperm(len(samples), generator=generator(SEED, "shuffle", *scope)).tolist()
        for start in range(0, len(order), BATCH):
            yield [(samples.x[i].double(), int(samples.y[i])) for i in order[start : start + BATCH]]


def descend(w: Net, steps: Iterator, loss: Callable[[Net, list], Tensor], lr: float, momentum: float) -> Net:
    """Return a network after SGD with momentum: ``v ← μv + ∇``, ``w ← w − lr·v``."""
    velocity = [torch.zeros_like(t) for t in w]
    for batch in steps:
        leaves = [t.clone().requires_grad_() for t in w]
        gradients = torch.autograd.grad(loss(leaves, batch), leaves)
        velocity = [momentum * v + g for v, g in zip(velocity, gradients, strict=True)]
        w = [t - lr * v for t, v in zip(w, velocity, strict=True)]
    return w


def mean_balanced(outputs: Callable[[Net, Tensor], Tensor], w: Net, batch, prior, classes) -> Tensor:
    """Return the mean balanced cross-entropy of a batch."""
    return naive.mean([balanced(outputs(w, x), y, prior, classes) for x, y in batch])


def answers(
    f: Tensor, g: Tensor, prior: Sequence[float], own: Sequence[int], fusion: tuple[float, float]
) -> dict[str, int]:
    """Return the class of one sample by every rule.

    Args:
        f: ``(K,)`` outputs of the expert.
        g: ``(K,)`` log-probabilities of the beacon.
        prior: ``π``.
        own: Classes held.
        fusion: ``a`` and ``b``.
    """
    K, (a, b) = len(g), fusion
    s = [a * float(f[y]) + b * float(g[y]) for y in range(K)]
    p = everything(s, g, own)
    return {
        "head": max(own, key=lambda y: s[y] + prior[y]),
        "expert": max(own, key=lambda y: float(f[y]) + prior[y]),
        "beacon": max(range(K), key=lambda y: float(g[y]) + prior[y]),
        "all_classes": max(range(K), key=lambda y: p[y]),
        "global_model": max(range(K), key=lambda y: float(g[y])),
    }


def everything(s: Sequence[float], g: Tensor, own: Sequence[int]) -> list[float]:
    """``P(y) = P_g(A)·softmax_A(s)_y`` for y in A, otherwise ``P_g(y)``."""
    held = sum(math.exp(g[y]) for y in own)
    total = sum(math.exp(s[y]) for y in own)
    return [held * math.exp(s[y]) / total if y in own else math.exp(g[y]) for y in range(len(g))]


Scored = tuple[Sequence[float], Sequence[float], int]
"""Outputs ``f`` and ``g`` of a sample for the classes of A, and the place of its own class among them."""


def fusion_loss(a: float, b: float, samples: Sequence[Scored], prior: Sequence[float], caution: float) -> float:
    """``Σ −log softmax(a·f + b·g + π)_y + κ·((a − ½)² + (b − ½)²)``."""
    loss = caution * ((a - 0.5) ** 2 + (b - 0.5) ** 2)
    for f, g, y in samples:
        z = [a * f[c] + b * g[c] + prior[c] for c in range(len(prior))]
        highest = max(z)
        loss += highest + math.log(sum(math.exp(v - highest) for v in z)) - z[y]
    return loss


def lowest(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a convex function is least, by thirds."""
    while high - low > 1e-7:
        third = (high - low) / 3
        if function(low + third) <= function(high - third):
            high -= third
        else:
            low += third
    return (low + high) / 2


def fit(samples: Sequence[Scored], prior: Sequence[float], caution: float, reach: float = 8) -> tuple[float, float]:
    """Return ``a`` and ``b`` in ``[-reach, reach]`` of the least loss: of the best b for each a, the best."""

    def best_b(a: float) -> float:
        return lowest(lambda b: fusion_loss(a, b, samples, prior, caution), -reach, reach)

    a = lowest(lambda a: fusion_loss(a, best_b(a), samples, prior, caution), -reach, reach)
    return a, best_b(a)
