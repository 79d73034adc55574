"""Architectures from torchvision and timm, with the stem adapted to the data and the classifier removed."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from protofed.errors import ConfigError, unknown_name
from protofed.models.catalogue import Backbone, ImageOptions, architecture
from protofed.models.preparation import HALVES, IMAGENET, Normalisation
from protofed.options import named, remote


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


def _torchvision(
    name: str,
    channels: int,
    options: VisionOptions,
    stem: str,
    init: Callable[[Tensor], None] | None,
    removed: tuple[str, ...] = ("fc",),
    normalisation: Normalisation = IMAGENET,
    **arguments: Any,
) -> Backbone:
    """Return a network of torchvision without its classifier, the first of ``removed``."""
    from torchvision.models import get_model

    model = get_model(name, weights=None, **arguments)
    _fit_stem(model, stem, channels, init)
    setattr(model, removed[0], nn.Identity())
    return Backbone(model, None, options.dropout, stem, removed, normalisation)


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
    backbone = _torchvision("mobilenet_v2", input_shape[0], options, "features.0.0", _he, ("classifier",))
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
    return _torchvision("efficientnet_b0", input_shape[0], options, "features.0.0", _he, ("classifier",))


@architecture("googlenet", "GoogLeNet (Szegedy et al. 2015), no auxiliary heads, 1024 wide", VisionOptions)
def _googlenet(input_shape: tuple[int, ...], d: int, options: VisionOptions) -> Backbone:
    backbone = _torchvision(
        "googlenet",
        input_shape[0],
        options,
        "conv1.conv",
        _narrow,
        ("fc", "aux1", "aux2"),
        HALVES,  # into which torchvision's own model, with weights, turns ImageNet's (transform_input)
        aux_logits=False,
        init_weights=True,  # the default does the same but warns
    )
    backbone.module.dropout = nn.Identity()
    return backbone


@dataclass(frozen=True)
class TimmOptions(VisionOptions):
    """Options of ``timm``."""

    model: str = named("resnet18", "name of a model of timm, with its tag if weights belong to one", of="")


@architecture("timm", "any image model of the package timm, head_hidden_size wide", TimmOptions)
def _timm(input_shape: tuple[int, ...], d: int, options: TimmOptions) -> Backbone:
    """A model with ``num_classes=0``; timm's own loader adapts weights to it and to the number of channels."""
    try:
        import timm
    except ImportError:
        raise ConfigError("timm: the package timm is missing: pip install 'protofed[timm]'") from None
    known = timm.list_models()
    name = options.model if ":" in options.model else options.model.partition(".")[0]
    if name not in known:  # timm would look up names of another form on a hub
        raise ConfigError(unknown_name("model of timm", name, difflib.get_close_matches(name, known, 10)))

    def create(**loaded: Any) -> nn.Module:
        module: nn.Module = timm.create_model(options.model, num_classes=0, in_chans=input_shape[0], **loaded)
        return module

    def adapt(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        # Without a classifier to drop, the loader insists on every tensor.
        source = {"state_dict": tensors, "classifier": None, "source": "", "custom_load": False}
        return create(pretrained=True, pretrained_cfg_overlay=source).state_dict()

    module = create()
    published: Any = module.pretrained_cfg
    classifier = published.get("classifier") or ()
    removed = (classifier,) if isinstance(classifier, str) else tuple(classifier)
    normalisation = Normalisation(tuple(published["mean"]), tuple(published["std"]))
    return Backbone(module, None, options.dropout, "", removed, normalisation, adapt)
