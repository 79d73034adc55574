"""Who resembles whom, by class means alone.

Squared distances between two clients' means of a class, in the metric of the covariance within classes, are by
chance ``1/n_ik + 1/n_jk`` in each of d directions. What they exceed that by,

    T_ij = Σ_k w_k·(‖m_ik − m_jk‖²/d − 1/n_ik − 1/n_jk) / Σ_k w_k,   w_k = 1/(1/n_ik + 1/n_jk)²,

is the variance of what sets two clients apart.
"""

from __future__ import annotations

import torch
from torch import Tensor

STRANGERS = 1e6
"""``T`` of clients that share no class, and the largest: in units of the variance within classes, nobody counts."""


def resemblance(counts: Tensor, means: Tensor, covariance: Tensor, least: float) -> Tensor:
    """Return ``T``, ``(M, M)``; :data:`STRANGERS` for clients that share no class, 0 for a client and itself.

    Args:
        counts: ``n_ik``, ``(M, K)``.
        means: ``m_ik``, ``(M, K, d)``.
        covariance: Within classes, ``(d, d)``.
        least: Smallest variance.
    """
    values, vectors = torch.linalg.eigh(covariance)
    white = means @ (vectors / values.clamp(min=least).sqrt())
    excess, total = (counts.new_zeros(len(counts), len(counts)) for _ in range(2))
    for k in range(counts.shape[1]):
        chance = 1 / counts[:, k]  # infinite without samples, where the weight is 0
        both = chance.unsqueeze(0) + chance.unsqueeze(1)
        weight = both.square().reciprocal()
        apart = torch.cdist(white[:, k], white[:, k]).square() / len(covariance)
        excess += torch.where(weight > 0, weight * (apart - both), 0)
        total += weight
    return (excess / total).nan_to_num(nan=STRANGERS).clamp(max=STRANGERS).fill_diagonal_(0)
