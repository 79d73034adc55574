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
from protofed.seeding import generator


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


def answers(f: Tensor, g: Tensor, prior: Sequence[float], own: Sequence[int], *, summed: bool) -> dict[str, int]:
    """Return the class of one sample by every rule.

    Args:
        f: ``(K,)`` outputs of the expert.
        g: ``(K,)`` log-probabilities of the beacon.
        prior: ``π``.
        own: Classes held.
        summed: Whether scores are sums rather than means.
    """
    K = len(g)
    s = [float(f[y] + g[y]) / (1 if summed else 2) for y in range(K)]
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
