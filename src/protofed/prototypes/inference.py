"""The pull of prototypes on features during training, and classification by nearest prototypes."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.prototypes.table import Prototypes


def squared_pull(features: Tensor, labels: Tensor, prototypes: Prototypes) -> Tensor:
    """Return ``‖f(x) − C_y‖² / d`` per sample, 0 for samples whose class has no prototype.

    Args:
        features: ``(B, d)``.
        labels: ``(B,)`` int64.
        prototypes: Table of ``K`` classes.

    Returns:
        ``(B,)``; its batch mean is the MSE of the public code, in which a sample without prototype still counts in
        the denominator.
    """
    distance = F.mse_loss(features, prototypes.rows[labels], reduction="none").mean(-1)
    return torch.where(prototypes.present[labels], distance, 0.0)


def nearest(features: Tensor, prototypes: Prototypes) -> Tensor:
    """Return the class of the nearest prototype in Euclidean distance (TinyProto Eq. 12, ProtoNorm Eq. 6).

    Args:
        features: ``(B, d)``.
        prototypes: Table of ``K`` classes; those that have none are never returned.

    Returns:
        ``(B,)`` int64; the smallest class wins a tie. -1 where the distance is not finite (a feature is not, or no
        class has a prototype).
    """
    # Direct differences: the quadratic expansion loses the small differences between distant prototypes.
    distances = torch.cdist(features, prototypes.rows, compute_mode="donot_use_mm_for_euclid_dist")
    least, closest = distances.masked_fill(~prototypes.present, torch.inf).min(-1)
    return torch.where(least.isfinite(), closest, -1)


def most_likely(logits: Tensor) -> Tensor:
    """Return the ``(B,)`` classes of the largest of ``(B, K)`` logits, -1 for samples whose logits are not finite.

    NaN has an argmax too; a diverged model must not be credited with it.
    """
    return torch.where(logits.isfinite().all(-1), logits.argmax(-1), -1)
