"""Class means, of samples and of clients' prototypes: the one place where they are computed."""

from __future__ import annotations

import torch
from torch import Tensor

from protofed.prototypes.table import Prototypes


def class_sums(
    features: Tensor, labels: Tensor, num_classes: int, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return ``(K, d)`` sums and ``(K,)`` numbers of features of each class; ``weight`` is 0 for padding."""
    # A product, because on a GPU sums by index depend on the order in which threads arrive.
    members = (labels.unsqueeze(-1) == torch.arange(num_classes, device=labels.device)).to(features.dtype)
    if weight is not None:
        members = members * weight.to(features.dtype).unsqueeze(-1)
    return members.mT @ features, members.sum(0)


def class_means(sums: Tensor, counts: Tensor) -> Prototypes:
    """Return local prototypes ``c_ij = mean f_i(x)`` (FedProto Eq. 3), of sums over any number of batches."""
    return Prototypes(sums / counts.clamp(min=1).unsqueeze(-1), counts > 0)


def average_by_label(prototypes: Tensor, labels: Tensor, K: int) -> tuple[Tensor, Tensor]:
    """Return the plain mean of the rows of each class, zero where it has none, and the number of rows."""
    counts = torch.bincount(labels, minlength=K)
    sums = prototypes.new_zeros(K, prototypes.shape[1]).index_add_(0, labels, prototypes)
    return sums / counts.clamp(min=1).unsqueeze(1).to(sums.dtype), counts


class RunningMean:
    """Weighted per-class mean over uploads that are seen once, one at a time.

    Sums in float64, so that the result does not depend on the order of arrival beyond rounding at 1e-16.
    """

    def __init__(self, num_classes: int, width: int) -> None:
        self.sums = torch.zeros(num_classes, width, dtype=torch.float64)
        self.weights = torch.zeros(num_classes, dtype=torch.float64)
        self.reporters = torch.zeros(num_classes, dtype=torch.int64)

    def add(self, classes: Tensor, rows: Tensor, weights: Tensor | None = None) -> None:
        """Add one upload of ``(k, width)`` rows of distinct classes; weights are 1 if None."""
        w = torch.ones(len(classes), dtype=torch.float64) if weights is None else weights.double()
        self.sums[classes] += rows.double() * w.unsqueeze(-1)
        self.weights[classes] += w
        self.reporters[classes] += 1

    def mean(self) -> Prototypes:
        """Return the means of the classes of which something arrived, in float64."""
        known = self.weights > 0
        return Prototypes(self.sums / self.weights.where(known, 1).unsqueeze(-1), known)

    def sum(self) -> Prototypes:
        """Return the weighted sums of the classes of which something arrived, in float64."""
        return Prototypes(self.sums, self.weights > 0)
