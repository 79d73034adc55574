"""The pull of prototypes on features during training, and classification by nearest prototypes."""

from __future__ import annotations

import sys
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.prototypes.means import class_means, class_sums
from protofed.prototypes.table import Prototypes

Distance = Literal["squared", "euclidean", "l1", "cosine"]


def distance(left: Tensor, right: Tensor, kind: Distance = "squared") -> Tensor:
    """Return the distance ρ between rows (FedProto, Eq. 8).

    ``squared`` is ``‖a − b‖²/d``, the MSE of all public code; ``euclidean`` is ``‖a − b‖₂`` and ``l1`` ``‖a −
    b‖₁``. For these two, entries that differ by rounding alone count as equal, with gradient 0: otherwise a
    rounding error would decide the direction of a gradient of full length. ``cosine`` is ``1 − cos(a, b)``
    (FedORGP).
    """
    if kind == "squared":
        return F.mse_loss(left, right, reduction="none").mean(-1)
    if kind == "cosine":
        return 1 - F.cosine_similarity(left, right, dim=-1)
    apart = left - right
    rounding = torch.finfo(apart.dtype).eps ** 0.5 * right.abs().amax(-1, keepdim=True)
    apart = torch.where(apart.abs() > rounding, apart, 0.0)
    result: Tensor = torch.linalg.vector_norm(apart, ord=1 if kind == "l1" else 2, dim=-1)
    return result


def pull(features: Tensor, labels: Tensor, prototypes: Prototypes, kind: Distance = "squared") -> Tensor:
    """Return ``ρ(f(x), C_y)`` per sample, 0 for samples whose class has no prototype.

    Its batch mean is the term of the public code, in which a sample without prototype still counts below.
    """
    apart = distance(features, prototypes.rows[labels], kind)
    return torch.where(prototypes.present[labels], apart, 0.0)


def pull_of_means(
    features: Tensor, labels: Tensor, prototypes: Prototypes, kind: Distance, weight: Tensor | None = None
) -> Tensor:
    """Return ``R = Σ_j ρ(c_j, C_j)``, with the prototypes ``c_j`` of the batch (FedProto Eq. 8).

    Classes without a prototype, or a sample in the batch, have no term; ``weight`` is 0 for padding.
    """
    own = class_means(*class_sums(features, labels, len(prototypes.rows), weight))
    apart = distance(own.rows, prototypes.rows, kind)
    return torch.where(own.present & prototypes.present, apart, 0.0).sum()


def closeness(features: Tensor, prototypes: Prototypes) -> Tensor:
    """Return −‖f − C_j‖² of every class (TinyProto Eq. 12, ProtoNorm Eq. 6); the least number if it has none.

    Its softmax are the probabilities of prototypical networks (Snell et al., 2017, Eq. 2).
    """
    # ONNX has no distance: its exporter adds 1e-6 to every difference. Asking would import it in every run.
    if "torch.onnx" in sys.modules and torch.onnx.is_in_onnx_export():
        squares = (features.unsqueeze(-2) - prototypes.rows).square().sum(-1)
    else:
        # Direct differences: the quadratic expansion loses the small differences between distant prototypes.
        squares = torch.cdist(features, prototypes.rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    return (-squares).masked_fill(~prototypes.present, torch.finfo(features.dtype).min)


def alignment(features: Tensor, prototypes: Prototypes) -> Tensor:
    """Return ``2·cos(f, C_j) − 2 = −‖f/‖f‖ − C_j/‖C_j‖‖²`` of every class; features of length 0 are equally far."""
    cosines = F.normalize(features, dim=-1) @ F.normalize(prototypes.rows, dim=-1).mT
    return (2 * cosines - 2).masked_fill(~prototypes.present, torch.finfo(features.dtype).min)


def most_likely(logits: Tensor) -> Tensor:
    """Return the ``(B,)`` classes of the largest of ``(B, K)`` logits, -1 for samples whose logits are not finite.

    NaN has an argmax too; a diverged model must not be credited with it.
    """
    return torch.where(logits.isfinite().all(-1), logits.argmax(-1), -1)
