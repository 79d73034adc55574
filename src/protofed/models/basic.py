"""Small architectures: a perceptron, four plain convolutional networks and ResNet-8."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from protofed.models.catalogue import Backbone, ImageOptions, architecture
from protofed.models.preparation import flat_width
from protofed.options import Options, remote

# Smallest image side for two unpadded 5×5 convolutions, each followed by 2×2 pooling.
_UNPADDED_SIDE = 16


@dataclass(frozen=True)
class MlpOptions(Options):
    """Options of ``mlp``."""

    hidden: tuple[int, ...] = remote((128, 128), "units of each hidden layer before the features", least=1)
    relu_features: bool = remote(False, "ReLU on the features as well")


@architecture(
    "identity", "no network: samples are features already, and only a head is trained", Options, images=False
)
def _identity(input_shape: tuple[int, ...], d: int, options: Options) -> Backbone:
    """Samples as they are, flattened; their length is the d of all clients."""
    return Backbone(nn.Flatten())


@architecture("mlp", "perceptron on vectors or flattened images", MlpOptions, images=False)
def _mlp(input_shape: tuple[int, ...], d: int, options: MlpOptions) -> Backbone:
    """Hidden layers with ReLU, then a layer to ``d``: ``len(hidden) + 2`` layers with the head.

    ProtoNorm's 5-layer perceptron (Sec. 3.2) is three hidden layers with ``d = 2``.
    """
    layers: list[nn.Module] = [nn.Flatten()]
    width = math.prod(input_shape)
    for units in options.hidden:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return Backbone(nn.Sequential(*layers), dense(width, d, options.relu_features))


@dataclass(frozen=True)
class Cnn2Options(ImageOptions):
    """Options of ``cnn2``."""

    channels: tuple[int, int] = remote((32, 64), "output channels of the two convolutions", least=1)
    padding: int | None = remote(None, "pixels on each side; none: 0, or 2 for images below 16 pixels", least=0)
    relu_features: bool = remote(True, "ReLU on the features")


@architecture(
    "cnn2", "two 5×5 convolutions and a layer to d (the usual FedAvg CNN; ProtoNorm's 4-layer CNN)", Cnn2Options
)
def _cnn2(input_shape: tuple[int, ...], d: int, options: Cnn2Options) -> Backbone:
    """The CNN of McMahan et al. (2017) without padding; 1024 flat features for 28×28 images.

    In this and the following networks, ReLU comes after the pooling rather than before it, which computes the same
    function on a quarter of the values.
    """
    first, second = options.channels
    padding = _padding(input_shape) if options.padding is None else options.padding
    body = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(input_shape[0], first, 5, padding=padding),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(first, second, 5, padding=padding),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
        )
    )
    return Backbone(body, dense(flat_width(body, input_shape, "cnn2"), d, options.relu_features), stem="conv1")


@dataclass(frozen=True)
class FedProtoCnnOptions(ImageOptions):
    """Options of ``fedproto_cnn``."""

    channels: int = remote(20, "output channels of the second convolution: 18, 20 or 22 in FedProto-mh", least=1)
    dropout: float = remote(
        0.5, "probability, for channels after the second convolution and for features", least=0, below=1
    )


@dataclass(frozen=True)
class FedProtoFemnistOptions(FedProtoCnnOptions):
    """Options of ``fedproto_femnist_cnn``."""

    size: int = remote(128, "side in pixels to which images are scaled, bilinearly (0 = as they are)", least=0)


@architecture("fedproto_cnn", "FedProto's CNN for MNIST (d = 50 there)", FedProtoCnnOptions)
def _fedproto_cnn(input_shape: tuple[int, ...], d: int, options: FedProtoCnnOptions) -> Backbone:
    """Two 5×5 convolutions with dropout (FedProto, Sec. 6.1); 21,840 parameters for MNIST with d = 50.

    The paper prints 21,500 (Sec. 5.2). Images smaller than 16 pixels are padded by 2.
    """
    return _with_dropout(5, input_shape, d, options, "fedproto_cnn")


@architecture("fedproto_femnist_cnn", "FedProto's CNN for FEMNIST (d = 50 there)", FedProtoFemnistOptions)
def _fedproto_femnist_cnn(input_shape: tuple[int, ...], d: int, options: FedProtoFemnistOptions) -> Backbone:
    """As ``fedproto_cnn``, with a 3×3 convolution first; 846,680 parameters for 10 classes with d = 50.

    The public code has images of 128 × 128 pixels (29 × 29 × 20 flat features), hence the default of ``size``; the
    paper's 16,000,000 parameters per round are those of 20 clients with 800,000 each (Table 3).
    """
    return _with_dropout(3, input_shape, d, options, "fedproto_femnist_cnn")


def _with_dropout(
    kernel: int, input_shape: tuple[int, ...], d: int, options: FedProtoCnnOptions, name: str
) -> Backbone:
    padding = _padding(input_shape)
    body = nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(input_shape[0], 10, kernel, padding=padding),
            pool1=nn.MaxPool2d(2),
            relu1=nn.ReLU(),
            conv2=nn.Conv2d(10, options.channels, 5, padding=padding),
            dropout=nn.Dropout2d(options.dropout),
            pool2=nn.MaxPool2d(2),
            relu2=nn.ReLU(),
            flatten=nn.Flatten(),
        )
    )
    width = flat_width(body, input_shape, name)
    return Backbone(body, dense(width, d, relu=True), head_dropout=options.dropout, stem="conv1")


@dataclass(frozen=True)
class Cnn4Options(ImageOptions):
    """Options of ``cnn4``."""

    channels: tuple[int, int, int, int] = remote(
        (64, 128, 256, 512), "output channels; the last is the width", least=1
    )


@architecture(
    "cnn4", "four 3×3 convolutions, global average pooling; images from 8×8 (ProtoNorm's is cnn2)", Cnn4Options
)
def _cnn4(input_shape: tuple[int, ...], d: int, options: Cnn4Options) -> Backbone:
    """Four convolutions that halve the image three times, so that 8×8 becomes one pixel, then average pooling."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    width = input_shape[0]
    for i, channels in enumerate(options.channels, start=1):
        # BatchNorm subtracts the mean, so a bias before it would have no effect.
        layers[f"conv{i}"] = nn.Conv2d(width, channels, 3, padding=1, bias=False)
        layers[f"norm{i}"] = nn.BatchNorm2d(channels)
        if i < len(options.channels):
            layers[f"pool{i}"] = nn.MaxPool2d(2)
        layers[f"relu{i}"] = nn.ReLU()
        width = channels
    layers["average"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    return Backbone(nn.Sequential(layers), stem="conv1")


def _padding(input_shape: tuple[int, ...]) -> int:
    return 0 if min(input_shape[1:]) >= _UNPADDED_SIDE else 2


def dense(width: int, d: int, relu: bool = True) -> nn.Module:
    """Return a layer to d features."""
    layers = OrderedDict[str, nn.Module](linear=nn.Linear(width, d))
    if relu:
        layers["relu"] = nn.ReLU()
    return nn.Sequential(layers)


@dataclass(frozen=True)
class ResNet8Options(ImageOptions):
    """Options of ``resnet8``."""

    stem: Literal["imagenet", "cifar"] = remote(
        "imagenet", "imagenet: 7×7 convolution of stride 2 and max pooling; cifar: 3×3 of stride 1"
    )
    widths: tuple[int, int, int] = remote((64, 128, 256), "channels of the stages; the last is the width", least=1)


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with a shortcut: ``(B, c_in, H, W) -> (B, c_out, H/stride, W/stride)``."""

    def __init__(self, c_in: int, c_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(c_in, c_out, 3, stride, padding=1, bias=False),
                norm1=nn.BatchNorm2d(c_out),
                relu=nn.ReLU(),
                conv2=nn.Conv2d(c_out, c_out, 3, padding=1, bias=False),
                norm2=nn.BatchNorm2d(c_out),
            )
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or c_in != c_out:
            projection = nn.Conv2d(c_in, c_out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(OrderedDict(conv=projection, norm=nn.BatchNorm2d(c_out)))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``relu(body(x) + shortcut(x))``."""
        result: Tensor = (self.body(x) + self.shortcut(x)).relu()
        return result


@architecture("resnet8", "ResNet with one basic block in each of three stages", ResNet8Options)
def _resnet8(input_shape: tuple[int, ...], d: int, options: ResNet8Options) -> Backbone:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    channels, width = input_shape[0], options.widths[0]
    large = options.stem == "imagenet"
    kernel, stride = (7, 2) if large else (3, 1)
    layers["conv"] = nn.Conv2d(channels, width, kernel, stride, padding=kernel // 2, bias=False)
    layers["norm"] = nn.BatchNorm2d(width)
    layers["relu"] = nn.ReLU()
    if large:
        layers["pool"] = nn.MaxPool2d(3, stride=2, padding=1)
    for i, wider in enumerate(options.widths, start=1):
        layers[f"block{i}"] = BasicBlock(width, wider, stride=1 if i == 1 else 2)
        width = wider
    layers["average"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    module = nn.Sequential(layers)
    for m in module.modules():
        if isinstance(m, nn.Conv2d):
            nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
    return Backbone(module, stem="conv")
