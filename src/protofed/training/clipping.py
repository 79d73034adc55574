"""Gradients shortened to a largest norm, network by network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

EPSILON = 1e-6
"""Added to a norm before dividing by it, as ``torch.nn.utils.clip_grad_norm_`` does."""


def network_of(name: str) -> str:
    """Return which network a parameter belongs to: ``extras.NAME``, or the client's model (empty)."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "extras" else ""


def clip(
    names: Sequence[str], gradients: Sequence[Tensor | None], limit: float, *, stacked: bool = False
) -> list[Tensor | None]:
    """Return gradients of which no network's has a Euclidean norm above ``limit``.

    Args:
        names: Of the parameters.
        gradients: In the same order; None where a parameter has none.
        limit: Largest norm.
        stacked: The first dimension counts clients, each with norms of its own.
    """
    squares: dict[str, Tensor] = {}
    for name, gradient in zip(names, gradients, strict=True):
        if gradient is not None:
            network, dims = network_of(name), list(range(int(stacked), gradient.dim()))
            square = gradient.square().sum(dims) if dims else gradient.square()
            squares[network] = squares[network] + square if network in squares else square
    scales = {network: (limit / (square.sqrt() + EPSILON)).clamp(max=1) for network, square in squares.items()}

    def shortened(name: str, gradient: Tensor | None) -> Tensor | None:
        if gradient is None:
            return None
        scale = scales[network_of(name)]
        return gradient * scale.reshape([*scale.shape, *[1] * (gradient.dim() - scale.dim())])

    with torch.no_grad():
        return [shortened(name, gradient) for name, gradient in zip(names, gradients, strict=True)]
