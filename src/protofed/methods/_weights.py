"""What weight-sharing methods have in common: naming, loading and averaging sets of weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from protofed.methods.contract import Tensors, every_parameter


def shared_weights(model: nn.Module, select: Callable[[str], bool] = every_parameter, *, buffers: bool) -> Tensors:
    """Return detached references to the selected parameters, and the floating-point buffers if asked.

    Integer buffers (BatchNorm's batch counter) are never shared.
    """
    tensors = dict(model.named_parameters())
    if buffers:
        tensors |= {n: b for n, b in model.named_buffers() if b.is_floating_point()}  # type: ignore[misc]
    return {name: tensor.detach() for name, tensor in tensors.items() if select(name)}


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy ``weights`` into the model's parameters and buffers of the same names."""
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(tensor)


class WeightedMean:
    """Weighted mean of sets of weights that are seen once, one at a time; sums in float64."""

    def __init__(self) -> None:
        self.sums: Tensors = {}
        self.total = 0.0

    def add(self, weights: Mapping[str, Tensor], weight: float) -> None:
        """Add one client's weights."""
        if weight == 0:
            return
        self.total += weight
        for name, tensor in weights.items():
            if name in self.sums:
                self.sums[name].add_(tensor, alpha=weight)
            else:
                self.sums[name] = tensor.double() * weight

    def mean(self, otherwise: Tensors) -> Tensors:
        """Return the mean in the dtype of ``otherwise``, or ``otherwise`` where nothing was added."""
        if not self.total:
            return otherwise
        return {n: (self.sums[n] / self.total).to(old.dtype) for n, old in otherwise.items()}
