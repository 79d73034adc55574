"""Class means: what a client sends and what a server makes of it."""

from __future__ import annotations

import torch
from torch import Tensor


def class_sums(
    features: Tensor, labels: Tensor, num_classes: int, weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return the sum of features and the number of samples of each class.

    Args:
        features: ``(B, d)``.
        labels: ``(B,)`` int64 in ``[0, K)``.
        num_classes: ``K``.
        weight: ``(B,)`` 0 leaves a sample out; None keeps all.

    Returns:
        ``(K, d)`` sums and ``(K,)`` counts, both in the dtype of ``features``.
    """
    # A product, because on a GPU sums by index depend on the order in which threads arrive.
    members = (labels.unsqueeze(-1) == torch.arange(num_classes, device=labels.device)).to(features.dtype)
    if weight is not None:
        members = members * weight.to(features.dtype).unsqueeze(-1)
    return members.mT @ features, members.sum(0)


def class_means(sums: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return local prototypes ``c_ij = mean f_i(x)`` (FedProto Eq. 3) from :func:`class_sums`.

    Returns:
        ``(K, d)`` means, zero where a class has no sample, and ``(K,)`` bool, which classes have one.
    """
    return sums / counts.clamp(min=1).unsqueeze(-1), counts > 0


def scatter_rows(rows: Tensor, classes: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return ``(k, d)`` rows of the given ``(k,)`` classes as a dense ``(K, d)`` table and who is present."""
    table = rows.new_zeros(num_classes, *rows.shape[1:])
    present = torch.zeros(num_classes, dtype=torch.bool, device=rows.device)
    table[classes] = rows
    present[classes] = True
    return table, present


def gather_rows(table: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ``(k, d)`` rows of the classes that are present, and those ``(k,)`` classes: what is sent."""
    classes = present.nonzero().squeeze(-1)
    return table[classes], classes


class RunningMean:
    """Weighted per-class mean over uploads that are seen once, one at a time.

    Holds ``K·d`` numbers whatever the number of clients; sums in float64, so that the result does not depend
    on the order of arrival beyond rounding at 1e-16.
    """

    def __init__(self, num_classes: int, width: int) -> None:
        self.sums = torch.zeros(num_classes, width, dtype=torch.float64)
        self.weights = torch.zeros(num_classes, dtype=torch.float64)
        self.reporters = torch.zeros(num_classes, dtype=torch.int64)

    def add(self, classes: Tensor, rows: Tensor, weights: Tensor | None = None) -> None:
        """Add ``(k, width)`` rows of distinct ``(k,)`` classes with ``(k,)`` weights (1 if None)."""
        w = torch.ones(len(classes), dtype=torch.float64) if weights is None else weights.double()
        self.sums[classes] += rows.double() * w.unsqueeze(-1)
        self.weights[classes] += w
        self.reporters[classes] += 1

    def mean(self) -> tuple[Tensor, Tensor]:
        """Return ``(K, width)`` means (zero where nothing arrived) and ``(K,)`` bool, where something did."""
        known = self.weights > 0
        return self.sums / self.weights.where(known, 1).unsqueeze(-1), known
