"""Layers in place of those of a model: noise from keys, faster convolutions on small maps, GroupNorm."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofed.errors import ModelError

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


MOST_PAIRS = 64  #: Input pixels x output pixels up to which the matrix form of a depthwise convolution is faster


class SmallMapConv2d(nn.Conv2d):
    """``nn.Conv2d`` with the same parameters and the same result up to rounding, for channels-last input.

    Pointwise convolutions are computed as linear layers, and depthwise ones on maps with at most :data:`MOST_PAIRS`
    pairs of input and output pixels as a product with one matrix per channel; all others are computed as usual.
    """

    def forward(self, given: Tensor) -> Tensor:
        """Return ``(B, C', H', W')`` for ``(B, C, H, W)``."""
        if given.dim() == 4 and self.padding_mode == "zeros" and not isinstance(self.padding, str):
            if self.groups == 1 and set(self.kernel_size) == {1} and not any(self.padding):
                return self._pointwise(given)
            if self.groups == self.in_channels == self.out_channels:
                H, W = _output_size(given, self)
                if H * W * given.shape[2] * given.shape[3] <= MOST_PAIRS:
                    return self._depthwise(given, H, W)
        return super().forward(given)

    def _pointwise(self, x: Tensor) -> Tensor:
        if self.stride != (1, 1):
            x = x[:, :, :: self.stride[0], :: self.stride[1]]
        return F.linear(x.permute(0, 2, 3, 1), self.weight.flatten(1), self.bias).permute(0, 3, 1, 2)

    def _depthwise(self, x: Tensor, H: int, W: int) -> Tensor:
        B, C = x.shape[:2]
        taps = _taps(tuple(x.shape[2:]), (H, W), self.kernel_size, self.stride, self.padding, self.dilation)
        # (C, 1, h, w), plus a zero tap for pairs that no tap connects -> (H·W, H_in·W_in, C).
        kernel = F.pad(self.weight.flatten(1), (0, 1)).t()[taps.to(x.device).flatten()].view(*taps.shape, C)
        pixels = x.permute(0, 2, 3, 1).reshape(B, 1, -1, C)
        out = (pixels * kernel).sum(2)
        if self.bias is not None:
            out = out + self.bias
        return out.view(B, H, W, C).permute(0, 3, 1, 2)


def reduce_convolutions(model: nn.Module) -> nn.Module:
    """Turn every plain ``nn.Conv2d`` of ``model`` into a :class:`SmallMapConv2d` in place and return ``model``.

    Subclasses of ``nn.Conv2d`` and parametrised convolutions are left unchanged.
    """
    for module in model.modules():
        if type(module) is nn.Conv2d:
            module.__class__ = SmallMapConv2d  # the same object: parameters and hooks stay in place
    return model


def _output_size(x: Tensor, conv: nn.Conv2d) -> tuple[int, int]:
    assert not isinstance(conv.padding, str)
    H, W = (
        (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1
        for size, pad, dilation, kernel, stride in zip(
            x.shape[2:], conv.padding, conv.dilation, conv.kernel_size, conv.stride, strict=True
        )
    )
    return H, W


@lru_cache(maxsize=256)
def _taps(
    size: tuple[int, ...],
    out: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
) -> Tensor:
    """Return ``(H'·W', H·W)``: the index of the kernel tap that connects two pixels, or ``h·w`` if none does."""
    rows, columns = (_axis(*axis) for axis in zip(size, out, kernel, stride, padding, dilation, strict=True))
    both = rows[:, None, :, None] * kernel[1] + columns[None, :, None, :]
    missing = (rows[:, None, :, None] < 0) | (columns[None, :, None, :] < 0)
    return both.masked_fill(missing, kernel[0] * kernel[1]).reshape(out[0] * out[1], size[0] * size[1])


def _axis(size: int, out: int, kernel: int, stride: int, padding: int, dilation: int) -> Tensor:
    """Return ``(out, size)``: the tap along one axis that connects two positions, or -1 if none does."""
    offset = torch.arange(size) - (torch.arange(out)[:, None] * stride - padding)
    tap = offset.div(dilation, rounding_mode="floor")
    return tap.where((offset % dilation == 0) & (tap >= 0) & (tap < kernel), torch.tensor(-1))


GROUPS = 32  #: Most groups of channels (Wu and He, "Group Normalization", ECCV 2018)


def group_norm(model: nn.Module) -> nn.Module:
    """Replace every BatchNorm layer of ``model`` by GroupNorm in place, with its affine weights; return ``model``.

    There are as many groups as possible, up to :data:`GROUPS`, with at least two channels each where there are two.
    """
    for name, child in list(model.named_children()):
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            channels = child.num_features
            groups = max(g for g in range(1, min(GROUPS, max(1, channels // 2)) + 1) if channels % g == 0)
            new = nn.GroupNorm(groups, channels, child.eps, child.affine)
            if child.affine:
                new.load_state_dict({"weight": child.weight, "bias": child.bias})
            setattr(model, name, new)
        else:
            group_norm(child)
    return model


def check_single_samples(model: nn.Module, protected: Callable[[str], bool]) -> None:
    """Refuse a model with a layer that has no gradient of a single sample, but needs one.

    Args:
        protected: Selects weights that are trained by such gradients, by name.
    """
    for name, module in model.named_modules():
        keeps = isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats
        mixes = keeps or isinstance(module, nn.modules.batchnorm._BatchNorm)
        if mixes and protected(f"{name}.weight"):
            raise ModelError(
                f"privacy.mode=sample: {name} is a {type(module).__name__}, which mixes samples: set "
                "model.norm=group"
            )
