"""The registry of architectures and the interface of its entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from protofed.errors import ModelError
from protofed.models.checking import show
from protofed.models.preparation import Normalisation
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
    """The backbone that an architecture builds.

    Attributes:
        module: ``x -> (B, width)``.
        map: Own ``(B, width) -> (B, d)``; None to use the map the caller chooses.
        stem: First convolution, whose number of input channels follows the data.
        removed: Modules of the published network that the backbone lacks, such as its classifier.
        adapt: From the tensors of a file to those of the module; None if they have the same names.
    """

    module: nn.Module
    map: nn.Module | None = None
    head_dropout: float = 0.0
    stem: str = ""
    removed: tuple[str, ...] = ()
    normalisation: Normalisation | None = None
    adapt: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None


Make = Callable[[tuple[int, ...], int, Any], Backbone]


@dataclass(frozen=True)
class NamedArchitecture:
    """A named architecture.

    Attributes:
        make: ``(input_shape, d, options) -> Backbone``, drawing weights from torch's default generator.
        images: Accepts only samples ``(C, H, W)``.
    """

    name: str
    summary: str
    Options: type
    make: Make
    images: bool


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
