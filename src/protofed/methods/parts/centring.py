"""Centring of features: what sets a client's class means apart from everybody's in all classes alike.

A client's device or population moves all of its features, whatever their class. Its plain mean would show that only
if all clients had the same classes. Here the offset ``b_i`` of a client is that of the additive model

    μ_ik ≈ a_k + b_i,   minimising   Σ_ik n_ik·‖μ_ik − a_k − b_i‖² + λ·Σ_i ‖b_i‖²,

as in an analysis of variance of two factors, so that rare and absent classes do not matter. The closed form is then
made of ``φ − b_i``, whose class means are the ``a_k``; from these and its own sums a client knows its offset.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from protofed.methods.parts.moments import Linear, Sums

PSEUDO = 20.0
"""λ: so many samples without any offset count beside a client's own.

What is then left of large offsets is part of the covariance, whose inverse gives it little weight.
"""


def offset(own: Sums, means: Tensor) -> Tensor:
    """Return ``b_i = Σ_k n_ik (μ_ik − a_k) / (n_i + λ)``, ``(d,)``, given ``means`` ``a_k``, ``(K, d)``."""
    apart: Tensor = (own.sums - own.counts.unsqueeze(-1) * means).sum(0)
    return apart / (own.counts.sum() + PSEUDO)


def means_apart(counts: Tensor, sums: Tensor, totals: Tensor) -> Tensor:
    """Return the ``a_k`` of all classes, ``(K, d)``; 0 of those without samples.

    Args:
        counts: ``n_ik``, ``(M, K)``.
        sums: Sum of each client's features, ``(M, d)``.
        totals: Sum of the features of each class, ``(K, d)``.
    """
    weights = 1 / (counts.sum(1) + PSEUDO)
    shared = counts.mT * weights
    matrix = (counts.sum(0) + (counts.sum(0) == 0)).diag() - shared @ counts
    found: Tensor = torch.linalg.solve(matrix, totals - shared @ sums)
    return found


def move_sums(sums: Sums, by: Tensor) -> Sums:
    """Return the sums of ``φ − b``."""
    total, n = sums.sums.sum(0), sums.counts.sum()
    cross = torch.outer(total, by)
    return Sums(
        sums.counts, sums.sums - sums.counts.unsqueeze(-1) * by, sums.moment - cross - cross.mT + n * by.outer(by)
    )


def centre_sums(total: Sums, counts: Sequence[Tensor], sums: Sequence[Tensor]) -> Sums:
    """Return the sums of ``φ − b_i`` over all clients.

    Args:
        total: Sums of ``φ``.
        sums: Sum of the features of each client, ``(d,)``.
    """
    if not counts:
        return total
    N, T = torch.stack(list(counts)), torch.stack(list(sums))
    means, n = means_apart(N, T, total.sums), N.sum(1)
    offsets = (T - N @ means) / (n + PSEUDO).unsqueeze(-1)
    cross = T.mT @ offsets
    moment = total.moment - cross - cross.mT + (offsets.mT * n) @ offsets
    return Sums(total.counts, total.sums - N.mT @ offsets, moment)


def place_classifier(classifier: Linear, by: Tensor) -> Linear:
    """Return the classifier of ``φ`` that answers as the given one does of ``φ − b``."""
    return classifier._replace(bias=classifier.bias - classifier.weights @ by.to(classifier.weights))
