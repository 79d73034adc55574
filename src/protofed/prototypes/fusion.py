"""Two classifiers that answer together: the weights of their outputs that suit validation samples."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor


def learn_weights(answers: Iterable[tuple[Tensor, Tensor, Tensor]], own: Tensor, prior: Tensor) -> Tensor:
    """Return ``a`` and ``b``, ``(2,)``: those that suit a client's validation samples of its classes, or halves.

    ``answers`` are batches of the outputs ``f`` and ``g``, ``(B, K)`` each, and labels; ``prior`` is ``π``.
    """
    found = [(f[own[y]][:, own], g[own[y]][:, own], own.cumsum(0)[y[own[y]]] - 1) for f, g, y in answers]
    if not found:
        return prior.new_full((2,), 0.5)
    f, g, y = (torch.cat(parts) for parts in zip(*found, strict=True))
    return fit_weights(f, g, prior[own], y).to(prior)


def fit_weights(f: Tensor, g: Tensor, prior: Tensor, y: Tensor, caution: float = 1.0) -> Tensor:
    """Return ``a`` and ``b``, ``(2,)`` float64, that minimise the cross-entropy of ``a·f + b·g + π``.

    ``Σ CE + κ·((a − ½)² + (b − ½)²)`` with ``κ = caution`` is convex; Newton's method with steps halved until it
    falls. ``f`` are outputs of the expert, ``g`` log-probabilities of the beacon; ``(½, ½)`` for a diverged model.
    """
    x, prior = torch.stack([f, g], -1).double(), prior.double()
    middle = x.new_full((2,), 0.5)

    def objective(w: Tensor) -> Tensor:
        penalty = caution * (w - middle).square().sum()
        return F.cross_entropy(x @ w + prior, y, reduction="sum") + penalty

    w = middle
    if not bool(x.isfinite().all()):
        return w
    for _ in range(100):
        p = (x @ w + prior).softmax(-1).unsqueeze(-1)
        apart = x - (p * x).sum(1, keepdim=True)
        slope = -apart[torch.arange(len(y)), y].sum(0) + 2 * caution * (w - middle)
        curvature = torch.einsum("nac,nad->cd", p * apart, apart) + 2 * caution * torch.eye(2).to(x)
        step, size = torch.linalg.solve_ex(curvature, slope).result, 1.0
        while size > 1e-15 and not bool(objective(w - size * step) <= objective(w)):
            size /= 2
        if size <= 1e-15:
            break
        w = w - size * step
        if float(step.abs().max()) < 1e-9:  # where curvature is large, even so small a step is worth taking
            break
    return w
