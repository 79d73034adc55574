"""Architectures from torchvision, with the stem adapted to the data and the classifier removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from protofed.models.catalogue import Backbone, ImageOptions, architecture
from protofed.models.preparation import IMAGENET
from protofed.options import remote


@dataclass(frozen=True)
class VisionOptions(ImageOptions):
    """Options of the architectures from torchvision."""

    dropout: float = remote(
        0.0, "probability, between features and head (the library's own layer is removed)", least=0, below=1
    )


@dataclass(frozen=True)
class MobileNetOptions(VisionOptions):
    """Options of ``mobilenet_v2``."""

    feature_dropout: float = remote(
        0.0, "probability, before the map to d, so that features are noisy in training", least=0, below=1
    )


@dataclass(frozen=True)
class ResNet18Options(VisionOptions):
    """Options of ``resnet18``."""

    stem_stride: tuple[int, int] = remote(
        (2, 2), "strides of the first convolution and of the max pooling: (1, 4) or (2, 2) in FedProto-mh", least=1
    )


def _he(weight: Tensor) -> None:
    nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")


def _fit_stem(model: nn.Module, path: str, channels: int, init: Callable[[Tensor], None] | None) -> None:
    """Replace the first convolution by one for ``channels``, initialised by ``init`` (None: torch's default)."""
    parent_path, _, name = path.rpartition(".")
    parent = model.get_submodule(parent_path)
    old = parent.get_submodule(name)
    assert isinstance(old, nn.Conv2d)
    if old.in_channels == channels:
        return
    new = nn.Conv2d(
        channels,
        old.out_channels,
        old.kernel_size,  # type: ignore[arg-type]
        stride=old.stride,  # type: ignore[arg-type]
        padding=old.padding,  # type: ignore[arg-type]
        bias=old.bias is not None,
    )
    if init is not None:
        init(new.weight)
    setattr(parent, name, new)


def _torchvision(
    name: str,
    channels: int,
    options: VisionOptions,
    stem: str,
    init: Callable[[Tensor], None] | None,
    classifier: str = "fc",
) -> Backbone:
    """Return a network of torchvision without its classifier."""
    from torchvision.models import get_model

    model = get_model(name, weights=None)
    _fit_stem(model, stem, channels, init)
    setattr(model, classifier, nn.Identity())
    return Backbone(model, None, options.dropout, stem, (classifier,), IMAGENET)


@architecture("resnet18", "ResNet-18 (He et al. 2016), 512 wide", ResNet18Options)
def _resnet18(input_shape: tuple[int, ...], d: int, options: ResNet18Options) -> Backbone:
    backbone = _torchvision("resnet18", input_shape[0], options, "conv1", _he)
    conv, pool = options.stem_stride
    model: Any = backbone.module
    model.conv1.stride = (conv, conv)
    model.maxpool.stride = pool
    return backbone


@architecture("mobilenet_v2", "MobileNet v2 (Sandler et al. 2018), 1280 wide", MobileNetOptions)
def _mobilenet_v2(input_shape: tuple[int, ...], d: int, options: MobileNetOptions) -> Backbone:
    backbone = _torchvision("mobilenet_v2", input_shape[0], options, "features.0.0", _he, "classifier")
    if options.feature_dropout:
        backbone.module.classifier = nn.Dropout(options.feature_dropout)
    return backbone


@architecture("shufflenet_v2_x1_0", "ShuffleNet v2 (Ma et al. 2018), 1024 wide", VisionOptions)
def _shufflenet_v2(input_shape: tuple[int, ...], d: int, options: VisionOptions) -> Backbone:
    return _torchvision("shufflenet_v2_x1_0", input_shape[0], options, "conv1.0", None)


@architecture(
    "shufflenet_v2_x0_5", "ShuffleNet v2 of half the channels (TinyProto, Fig. 1), 1024 wide", VisionOptions
)
def _shufflenet_v2_half(input_shape: tuple[int, ...], d: int, options: VisionOptions) -> Backbone:
    return _torchvision("shufflenet_v2_x0_5", input_shape[0], options, "conv1.0", None)


@architecture("efficientnet_b0", "EfficientNet-B0 (Tan and Le 2019), 1280 wide", VisionOptions)
def _efficientnet_b0(input_shape: tuple[int, ...], d: int, options: VisionOptions) -> Backbone:
    return _torchvision("efficientnet_b0", input_shape[0], options, "features.0.0", _he, "classifier")
