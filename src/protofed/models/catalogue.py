"""The registry of architectures and the interface of its entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from protofed.errors import ModelError
from protofed.models.checking import show
from protofed.registry import Registry


@dataclass(frozen=True)
class Backbone:
    """The backbone that an architecture builds.

    Attributes:
        module: Module ``x -> (B, width)``.
        map: The architecture's own map ``(B, width) -> (B, d)``; None to use the map the caller chooses.
        head_dropout: Dropout probability in front of the head; see :class:`protofed.models.SplitModel`.
    """

    module: nn.Module
    map: nn.Module | None = None
    head_dropout: float = 0.0


Make = Callable[[tuple[int, ...], int, Any], Backbone]


@dataclass(frozen=True)
class Architecture:
    """A named architecture.

    Attributes:
        name: Name in configurations.
        summary: One-line description.
        Options: Frozen dataclass of its options.
        make: Function ``(input_shape, d, options) -> Backbone`` that draws weights from torch's default generator.
    """

    name: str
    summary: str
    Options: type
    make: Make


architectures: Registry[Architecture] = Registry("architecture")


def architecture(name: str, summary: str, Options: type, *, images: bool = True) -> Callable[[Make], Make]:
    """Return a decorator that registers a function as an architecture.

    Args:
        name: Name in configurations.
        summary: One-line description.
        Options: Frozen dataclass of its options.
        images: Whether it accepts only samples ``(C, H, W)``; any other shape then raises ModelError.
    """

    def register(make: Make) -> Make:
        def checked(input_shape: tuple[int, ...], d: int, options: Any) -> Backbone:
            if images and len(input_shape) != 3:
                raise ModelError(
                    f"{name} takes images (C, H, W), not samples of shape {show(input_shape)}: use mlp"
                )
            return make(input_shape, d, options)

        architectures.register(name)(Architecture(name, summary, Options, checked))
        return make

    return register
