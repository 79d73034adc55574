"""Architectures for time series: convolutions over time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from protofed.errors import ModelError
from protofed.models.basic import dense
from protofed.models.catalogue import Backbone, architecture
from protofed.models.preparation import show
from protofed.options import Options, remote

_CELLS = 8  #: Steps to which ``cnn1d`` pools a series


@dataclass(frozen=True)
class Cnn1dOptions(Options):
    """Options of ``cnn1d``."""

    channels: tuple[int, ...] = remote((32, 64), "output channels of the convolutions", least=1)
    kernel: int = remote(7, "steps that each convolution sees", least=1)


@architecture(
    "cnn1d",
    "convolutions over time that halve it, and a layer to d: series (C, T) or (T,)",
    Cnn1dOptions,
    images=False,
)
def _cnn1d(input_shape: tuple[int, ...], d: int, options: Cnn1dOptions) -> Backbone:
    """The counterpart of ``cnn2``: convolutions with ReLU, eight averages per channel, a layer to d with ReLU."""
    layers, before = _start(input_shape, "cnn1d")
    for number, channels in enumerate(options.channels, start=1):
        layers[f"conv{number}"] = nn.Conv1d(before, channels, options.kernel, 2, padding=options.kernel // 2)
        layers[f"relu{number}"] = nn.ReLU()
        before = channels
    layers["pool"] = nn.AdaptiveAvgPool1d(_CELLS)
    layers["flatten"] = nn.Flatten()
    return Backbone(nn.Sequential(layers), dense(_CELLS * before, d), stem="conv1")


@dataclass(frozen=True)
class Fcn1dOptions(Options):
    """Options of ``fcn1d``."""

    channels: tuple[int, ...] = remote((128, 256, 128), "output channels; the last is the width", least=1)
    kernels: tuple[int, ...] = remote((8, 5, 3), "steps that each convolution sees", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.channels) != len(self.kernels):
            raise ValueError(f"channels has {len(self.channels)} numbers and kernels {len(self.kernels)}")


@architecture(
    "fcn1d",
    "convolutions with BatchNorm, average over time (Wang, Yan and Oates, 2017): series (C, T) or (T,)",
    Fcn1dOptions,
    images=False,
)
def _fcn1d(input_shape: tuple[int, ...], d: int, options: Fcn1dOptions) -> Backbone:
    """The fully convolutional network of "Time series classification from scratch", Sec. II-B."""
    layers, before = _start(input_shape, "fcn1d")
    for number, (channels, kernel) in enumerate(zip(options.channels, options.kernels, strict=True), start=1):
        # BatchNorm subtracts the mean, so a bias before it would have no effect.
        layers[f"conv{number}"] = nn.Conv1d(before, channels, kernel, padding=kernel // 2, bias=False)
        layers[f"norm{number}"] = nn.BatchNorm1d(channels)
        layers[f"relu{number}"] = nn.ReLU()
        before = channels
    layers["average"] = nn.AdaptiveAvgPool1d(1)
    layers["flatten"] = nn.Flatten()
    return Backbone(nn.Sequential(layers), stem="conv1")


def _start(input_shape: Sequence[int], name: str) -> tuple[OrderedDict[str, nn.Module], int]:
    """Return the first layers and the number of channels; a vector is a series of one channel."""
    if len(input_shape) == 1:
        return OrderedDict(channel=nn.Unflatten(1, (1, input_shape[0]))), 1
    if len(input_shape) == 2:
        return OrderedDict(), input_shape[0]
    raise ModelError(
        f"{name} takes series (C, T) or (T,), not samples of shape {show(tuple(input_shape))}: use cnn2 for images"
    )
