"""Faster equivalents of convolutions on small feature maps.

Networks designed for 224 x 224 pixels work on maps of 4 x 4 down to 1 x 1 when given 32 x 32 pixels. On such maps a
depthwise convolution is a small matrix per channel and a pointwise one is a linear layer, and on CPUs the general
kernels spend most of their time on overhead. Measurements are in ``papers/studies/speed.md``.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

MOST_PAIRS = 64
"""Input pixels x output pixels up to which the matrix form of a depthwise convolution is faster."""


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
