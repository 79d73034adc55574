"""Helpers of methods that train on the server."""

from __future__ import annotations

import torch

from protofed.methods.contract import Tensors
from protofed.wire.schema import Field


def sound(tensors: Tensors) -> bool:
    """Return whether all numbers may be broadcast; after training on a diverged client's upload they may not."""
    real = (t for t in tensors.values() if t.is_floating_point())
    return all(bool(t.isfinite().all()) and not bool((t.abs() > Field.limit).any()) for t in real)


def linear_layer(inputs: int, outputs: int, generator: torch.Generator, dtype: torch.dtype) -> Tensors:
    """Return ``weight`` and ``bias`` of a linear layer, uniform on ``±1/√inputs`` as torch initialises them."""
    bound = inputs**-0.5
    shapes = {"weight": (outputs, inputs), "bias": (outputs,)}
    return {
        name: torch.empty(shape, dtype=dtype).uniform_(-bound, bound, generator=generator)
        for name, shape in shapes.items()
    }
