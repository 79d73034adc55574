"""Dropout, and noise of other kinds, as functions of a key and not of torch's random state.

The noise of a step then depends on (seed, round, client, layer, step) alone: it is the same for a client that
trains alone, in another process, or stacked with others under ``torch.func.vmap``, on any device.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_MASK = 0xFFFFFFFF


def uniform(key: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return float32 numbers in [0, 1): ``(*shape)``, a hash of their position and of ``key``.

    The hash is a 32-bit integer mixer with good avalanche (multipliers found by the public search project
    hash-prospector), applied to the position, and again after the key's two halves have been worked in.

    Args:
        key: Scalar int64.
        shape: Of the result.
    """
    position = torch.arange(_size(shape), device=key.device)
    low, high = key & _MASK, (key >> 32) & _MASK
    mixed = _mix(_mix((position + low) & _MASK) ^ high)
    return ((mixed >> 8).float() / 2**24).view(shape)


def _mix(h: Tensor) -> Tensor:
    # Both multipliers are below 2^31, so that products of 32-bit numbers fit in int64.
    h = h ^ (h >> 16)
    h = (h * 0x21F0AAAD) & _MASK
    h = h ^ (h >> 15)
    h = (h * 0x735A2D97) & _MASK
    return h ^ (h >> 15)


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size


class _Keyed(nn.Module):
    """A layer with noise: ``key`` is set for each visit (see :func:`noise_keys`) and counts the layer's passes."""

    key: Tensor
    p: float

    def draw(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return new uniform numbers."""
        numbers = uniform(self.key, shape)
        self.key.add_(1 << 32)
        return numbers.to(like.dtype)


class KeyedDropout(_Keyed):
    """``nn.Dropout`` with noise from a key."""

    def forward(self, input: Tensor) -> Tensor:
        """Zero entries with probability ``p`` and scale the others by ``1/(1 − p)``, in training mode."""
        return _drop(self, input, tuple(input.shape), self.p)


class KeyedChannelDropout(_Keyed):
    """``nn.Dropout1d``, ``2d`` or ``3d`` with noise from a key."""

    def forward(self, input: Tensor) -> Tensor:
        """As :class:`KeyedDropout`, for whole channels of ``(B, C, …)``."""
        return _drop(self, input, (*input.shape[:2], *[1] * (input.dim() - 2)), self.p)


class KeyedStochasticDepth(_Keyed):
    """torchvision's ``StochasticDepth`` with noise from a key."""

    mode: str

    def forward(self, input: Tensor) -> Tensor:
        """As :class:`KeyedDropout`, for whole samples (mode ``row``) or the whole batch."""
        rows = input.shape[0] if self.mode == "row" else 1
        return _drop(self, input, (rows, *[1] * (input.dim() - 1)), self.p)


def _drop(layer: _Keyed, x: Tensor, shape: tuple[int, ...], p: float) -> Tensor:
    if not layer.training or p == 0:
        return x
    kept = (layer.draw(shape, x) >= p).to(x.dtype)
    return x * (kept / (1 - p) if p < 1 else kept)


class KeyedUniform(_Keyed):
    """A source of noise for a loss, in a model's ``extras``."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("key", torch.zeros((), dtype=torch.int64), persistent=False)

    def forward(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return numbers in [0, 1): new ones at each call in training mode, in eval mode always the same.

        They are those of ``like``'s dtype and belong to positions: of ``(B, …)`` numbers the first ``B'`` rows are
        what ``(B', …)`` would have given.
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
    """Give every dropout layer of ``model`` a key, in place; returns ``model``.

    Subclasses of torch's layers and calls of ``torch.nn.functional.dropout`` are left alone: their noise comes from
    torch's random state.
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
    """Return the keys of ``model``, scalar int64 buffers, by their names and in a fixed order."""
    return {
        f"{name}.key" if name else "key": module.key
        for name, module in model.named_modules()
        if isinstance(module, _Keyed)
    }
