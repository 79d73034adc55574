"""Clipping of gradients, separately for each network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

EPSILON = 1e-6
"""Added to a norm before dividing by it, as ``torch.nn.utils.clip_grad_norm_`` does."""


def network_of(name: str) -> str:
    """Return the network that a parameter belongs to: ``extras.NAME``, or empty for the client's model."""
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "extras" else ""


def clip(
    names: Sequence[str], gradients: Sequence[Tensor | None], limit: float, *, stacked: bool = False
) -> list[Tensor | None]:
    """Clip each network's gradient to a Euclidean norm of ``limit``.

    Args:
        gradients: None for parameters without one.
        stacked: The first dimension is that of clients, which are clipped separately.
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
