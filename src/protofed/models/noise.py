"""Dropout and other noise as functions of a key instead of torch's random state.

The noise of a step then depends only on (seed, round, client, layer, step): it is the same whether a client trains
alone, in another process, or stacked with others under ``torch.func.vmap``, on any device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

_MASK = 0xFFFFFFFF


def uniform(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return float32 numbers ``(*shape)`` in [0, 1), computed as a hash of their position and a key.

    The hash is a 32-bit integer mixer with good avalanche behaviour (multipliers found by the public project
    hash-prospector). It is applied to the sum of the position and the lower half of the key, and again after
    combining the result with the upper half.
    """
    position = torch.arange(math.prod(shape), device=key.device)
    low, high = key & _MASK, (key >> 32) & _MASK
    mixed = _mix(_mix((position + low) & _MASK) ^ high)
    return ((mixed >> 8).float() / 2**24).view(shape)


def _mix(h: Tensor) -> Tensor:
    # Both multipliers are below 2^31, so their products with 32-bit numbers fit in int64.
    h = h ^ (h >> 16)
    h = (h * 0x21F0AAAD) & _MASK
    h = h ^ (h >> 15)
    h = (h * 0x735A2D97) & _MASK
    return h ^ (h >> 15)


class _Keyed(nn.Module):
    """A layer with noise. Its ``key`` is set for each visit (see :func:`noise_keys`) and counts forward passes."""

    key: Tensor
    p: float

    def draw(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return new uniform numbers."""
        numbers = uniform(self.key, shape)
        self.key.add_(1 << 32)
        return numbers.to(like.dtype)


class KeyedDropout(_Keyed):
    """``nn.Dropout`` with noise from a key."""

    def forward(self, given: Tensor) -> Tensor:
        """Zero entries with probability ``p`` and scale the others by ``1/(1 − p)``, in training mode."""
        return _drop(self, given, tuple(given.shape), self.p)


class KeyedChannelDropout(_Keyed):
    """``nn.Dropout1d``, ``2d`` or ``3d`` with noise from a key."""

    def forward(self, given: Tensor) -> Tensor:
        """Apply dropout as :class:`KeyedDropout` does, to whole channels of ``(B, C, …)``."""
        return _drop(self, given, (*given.shape[:2], *[1] * (given.dim() - 2)), self.p)


class KeyedStochasticDepth(_Keyed):
    """torchvision's ``StochasticDepth`` with noise from a key."""

    mode: str

    def forward(self, given: Tensor) -> Tensor:
        """Apply dropout as :class:`KeyedDropout` does, to whole samples (mode ``row``) or the whole batch."""
        rows = given.shape[0] if self.mode == "row" else 1
        return _drop(self, given, (rows, *[1] * (given.dim() - 1)), self.p)


def _drop(layer: _Keyed, x: Tensor, shape: tuple[int, ...], p: float) -> Tensor:
    if not layer.training or p == 0:
        return x
    kept = (layer.draw(shape, x) >= p).to(x.dtype)
    return x * (kept / (1 - p) if p < 1 else kept)


class KeyedUniform(_Keyed):
    """A noise source for a loss, stored in a model's ``extras``."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return numbers in [0, 1), new ones at each call in training mode and always the same in eval mode.

        Each number depends on its position, so the first ``B'`` rows of ``(B, …)`` numbers equal the numbers of
        shape ``(B', …)``.
        """
        return self.draw(shape, like) if self.training else uniform(self.key, shape).to(like.dtype)


_KEYED: dict[str, type[_Keyed]] = {
    "torch.nn.modules.dropout.Dropout": KeyedDropout,
    "torch.nn.modules.dropout.Dropout1d": KeyedChannelDropout,
    "torch.nn.modules.dropout.Dropout2d": KeyedChannelDropout,
    "torch.nn.modules.dropout.Dropout3d": KeyedChannelDropout,
    "torchvision.ops.stochastic_depth.StochasticDepth": KeyedStochasticDepth,
}


def key_noise(model: nn.Module) -> nn.Module:
    """Give every dropout layer of ``model`` a key, in place, and return ``model``.

    Subclasses of torch's layers and calls of ``torch.nn.functional.dropout`` are left unchanged: their noise comes
    from torch's random state.
    """
    device = next(model.parameters()).device
    for module in model.modules():
        kind = type(module)
        keyed = _KEYED.get(f"{kind.__module__}.{kind.__qualname__}")
        if keyed is not None:
            module.__class__ = keyed  # the same object: hooks stay in place
            module.register_buffer("key", torch.zeros((), dtype=torch.int64, device=device), persistent=False)
    return model


def noise_keys(model: nn.Module) -> dict[str, Tensor]:
    """Return the keys of ``model``, scalar int64 buffers, by name and in a fixed order."""
    return {
        f"{name}.key" if name else "key": module.key
        for name, module in model.named_modules()
        if isinstance(module, _Keyed)
    }
