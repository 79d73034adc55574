"""Untrained architectures from torchvision, with the stem adapted to the data and the classifier removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from protofed.models.catalogue import Backbone, architecture
from protofed.options import Options, option


@dataclass(frozen=True)
class VisionOptions(Options):
    """Options of the torchvision architectures."""

    dropout: float = option(
        0.0, "probability, between features and head (torchvision's own layer is removed)", least=0, below=1
    )


@dataclass(frozen=True)
class ResNet18Options(VisionOptions):
    """Options of ``resnet18``."""

    stem_stride: tuple[int, int] = option(
        (2, 2), "strides of the first convolution and of the max pooling: (1, 4) or (2, 2) in FedProto-mh", least=1
    )


def _he(weight: Tensor) -> None:
    nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")


def _narrow(weight: Tensor) -> None:
    nn.init.trunc_normal_(weight, std=0.01)


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


@architecture("resnet18", "ResNet-18 (He et al. 2016), 512 wide", ResNet18Options)
def _resnet18(input_shape: tuple[int, ...], d: int, options: ResNet18Options) -> Backbone:
    from torchvision.models import resnet18

    model = resnet18(weights=None)
    _fit_stem(model, "conv1", input_shape[0], _he)
    conv, pool = options.stem_stride
    model.conv1.stride = (conv, conv)
    model.maxpool.stride = pool
    model.fc = nn.Identity()
    return Backbone(model, head_dropout=options.dropout)


@architecture("mobilenet_v2", "MobileNet v2 (Sandler et al. 2018), 1280 wide", VisionOptions)
def _mobilenet_v2(input_shape: tuple[int, ...], d: int, options: VisionOptions) -> Backbone:
    from torchvision.models import mobilenet_v2

    model = mobilenet_v2(weights=None)
    _fit_stem(model, "features.0.0", input_shape[0], _he)
    model.classifier = nn.Identity()
    return Backbone(model, head_dropout=options.dropout)


@architecture("shufflenet_v2_x1_0", "ShuffleNet v2 (Ma et al. 2018), 1024 wide", VisionOptions)
def _shufflenet_v2(input_shape: tuple[int, ...], d: int, options: VisionOptions) -> Backbone:
    from torchvision.models import shufflenet_v2_x1_0

    model = shufflenet_v2_x1_0(weights=None)
    _fit_stem(model, "conv1.0", input_shape[0], None)
    model.fc = nn.Identity()
    return Backbone(model, head_dropout=options.dropout)


@architecture("efficientnet_b0", "EfficientNet-B0 (Tan and Le 2019), 1280 wide", VisionOptions)
def _efficientnet_b0(input_shape: tuple[int, ...], d: int, options: VisionOptions) -> Backbone:
    from torchvision.models import efficientnet_b0

    model = efficientnet_b0(weights=None)
    _fit_stem(model, "features.0.0", input_shape[0], _he)
    model.classifier = nn.Identity()
    return Backbone(model, head_dropout=options.dropout)


@architecture("googlenet", "GoogLeNet (Szegedy et al. 2015), no auxiliary heads, 1024 wide", VisionOptions)
def _googlenet(input_shape: tuple[int, ...], d: int, options: VisionOptions) -> Backbone:
    from torchvision.models import googlenet

    # The default of init_weights does the same but warns.
    model = googlenet(weights=None, aux_logits=False, init_weights=True)
    _fit_stem(model, "conv1.conv", input_shape[0], _narrow)
    model.dropout = nn.Identity()
    model.fc = nn.Identity()
    return Backbone(model, head_dropout=options.dropout)
