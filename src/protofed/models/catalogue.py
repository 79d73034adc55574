"""The registries of architectures, and of groups of them for clients with different models."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from protofed.errors import ConfigError, ModelError, unknown_name
from protofed.models.preparation import Normalisation, show
from protofed.options import Options, named, remote
from protofed.registry import Registry


@dataclass(frozen=True)
class ImageOptions(Options):
    """Options of all architectures for images: initial weights, and the preparation of images in the model."""

    weights: str = named(
        "",
        "file with the backbone's initial weights (safetensors or torch.save), or the name of torchvision's own "
        "if torch has them on this machine, e.g. IMAGENET1K_V1",
        of="weights",
    )
    fresh: tuple[str, ...] = named(
        (), "parts of the backbone that do not start from the file, e.g. conv1,bn1: FedProto's stem", of=""
    )
    mean: tuple[float, ...] = remote(
        (), "mean of each channel, of 0 … 1 for 8-bit images (none: as the weights require, if there are any)"
    )
    std: tuple[float, ...] = remote((), "standard deviation of each channel (none: as for mean)", above=0)
    size: int = remote(0, "side in pixels to which images are scaled, bilinearly (0 = as they are)", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"mean has {len(self.mean)} numbers and std {len(self.std)}: give one per channel in each"
            )


def pairs(numbers: Sequence[int], what: str) -> tuple[tuple[int, int], ...]:
    """Return pairs of a first input and a number of inputs, ascending."""
    found = tuple(zip(numbers[::2], numbers[1::2], strict=False))
    ends = [0, *(first + n for first, n in found)]
    if len(numbers) % 2 or any(first < end or n < 1 for (first, n), end in zip(found, ends, strict=False)):
        raise ValueError(f"{what} must be pairs of a first input and a number of inputs, in ascending order")
    return found


@dataclass(frozen=True)
class TextOptions(Options):
    """Options of all architectures for texts as tokens."""

    tokens: tuple[int, ...] = remote(
        (), "inputs that are tokens: first and number of each text's (none: all); set by data.text", least=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        pairs(self.tokens, "tokens")

    @property
    def places(self) -> tuple[tuple[int, int], ...]:
        """First input and number of inputs of each text."""
        return pairs(self.tokens, "tokens")


@dataclass(frozen=True)
class Backbone:
    """The backbone that an architecture builds."""

    module: nn.Module  #: ``x -> (B, width)``
    map: nn.Module | None = None  #: Own ``(B, width) -> (B, d)``; None to use the map the caller chooses
    head_dropout: float = 0.0
    stem: str = ""  #: First convolution, whose number of input channels follows the data
    #: Modules of the published network that the backbone lacks, such as its classifier
    removed: tuple[str, ...] = ()
    normalisation: Normalisation | None = None


Make = Callable[[tuple[int, ...], int, Any], Backbone]


@dataclass(frozen=True)
class NamedArchitecture:
    """A named architecture."""

    name: str
    summary: str
    Options: type
    make: Make  #: ``(input_shape, d, options) -> Backbone``, drawing weights from torch's default generator
    images: bool  #: Accepts only samples ``(C, H, W)``


architectures: Registry[NamedArchitecture] = Registry("architecture")


def architecture(name: str, summary: str, Options: type, *, images: bool = True) -> Callable[[Make], Make]:
    """Return a decorator that registers a function as an architecture."""

    def register(make: Make) -> Make:
        def checked(input_shape: tuple[int, ...], d: int, options: Any) -> Backbone:
            if images and len(input_shape) != 3:
                raise ModelError(
                    f"{name} takes images (C, H, W), not samples of shape {show(input_shape)}: use mlp, or cnn1d "
                    "for series"
                )
            return make(input_shape, d, options)

        architectures.register(name)(NamedArchitecture(name, summary, Options, checked, images))
        return make

    return register


@dataclass(frozen=True)
class Group:
    """A list of architectures that are assigned to clients in turn."""

    summary: str
    members: tuple[tuple[str, dict[str, Any]], ...]


groups: Registry[Group] = Registry("model group")


def _group(name: str, summary: str, *members: tuple[str, dict[str, Any]]) -> None:
    groups.register(name)(Group(summary, members))


# EfficientNet's dropout before the head is that of both papers' public code, and of torchvision.
_LIGHT: tuple[tuple[str, dict[str, Any]], ...] = (
    ("resnet8", {}),
    ("mobilenet_v2", {}),
    ("shufflenet_v2_x1_0", {}),
    ("efficientnet_b0", {"dropout": 0.2}),
)

_group("light4", "ProtoNorm's and TinyProto's four lightweight models", *_LIGHT)
_group(
    "light4_as_coded",
    "light4 as in ProtoNorm's and TinyProto's code: MobileNet's features have dropout",
    *((name, {**own, "feature_dropout": 0.2} if name == "mobilenet_v2" else own) for name, own in _LIGHT),
)
for _name, _network, _data in (
    ("fedproto_mh", "fedproto_cnn", "MNIST"),
    ("fedproto_femnist_mh", "fedproto_femnist_cnn", "FEMNIST"),
):
    _channels = ((_network, {"channels": c}) for c in (18, 20, 22))
    _group(_name, f"FedProto-mh on {_data}: its CNN with 18, 20 or 22 channels", *_channels)
_group(
    "resnet18_mh",
    "FedProto-mh on CIFAR-10: ResNet-18 with two kinds of stem",
    *(("resnet18", {"stem_stride": s}) for s in ((1, 4), (2, 2))),
)
_group(
    "small4",
    "four tiny models for 8×8 digits, each with fewer than 60 thousand parameters at d = 64",
    ("mlp", {"hidden": (256,)}),
    ("cnn2", {"channels": (16, 32)}),
    ("mlp", {"hidden": (128, 128)}),
    ("cnn4", {"channels": (8, 16, 32, 64)}),
)
_group(
    "series4",
    "four small models for time series (C, T)",
    ("cnn1d", {"channels": (8, 16)}),
    ("fcn1d", {"channels": (16, 32, 16)}),
    ("mlp", {"hidden": (64,)}),
    ("tiny", {}),
)
_group(
    "text4",
    "four small networks for texts as tokens (data.text_as=tokens)",
    *((name, {}) for name in ("text_bag", "text_cnn", "text_gru", "text_transformer")),
)
_group(
    "mlp4",
    "four perceptrons for tables and vectors, such as embeddings",
    *(("mlp", {"hidden": hidden}) for hidden in ((128,), (64, 64), (256,), (128, 128))),
)


def members(name: str) -> list[tuple[str, dict[str, Any]]]:
    """Return ``(architecture, options)`` of a group's members, or of an architecture or import path alone."""
    if name in groups:
        return [(member, dict(options)) for member, options in groups.get(name).members]
    if name in architectures or ":" in name:
        return [(name, {})]
    raise ConfigError(unknown_name("model", name, [*groups, *architectures]))
