"""Where architectures are registered, and what an entry promises."""

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
    """What an architecture builds.

    Attributes:
        module: ``x -> (B, width)``.
        map: The architecture's own map ``(B, width) -> (B, d)``; None: use the map the caller asks for.
        head_dropout: See :class:`protofed.models.SplitModel`.
    """

    module: nn.Module
    map: nn.Module | None = None
    head_dropout: float = 0.0


Make = Callable[[tuple[int, ...], int, Any], Backbone]


@dataclass(frozen=True)
class Architecture:
    """A named architecture.

    Attributes:
        name: As users write it.
        summary: One line.
        Options: Frozen dataclass of its options.
        make: ``(input_shape, d, options) -> Backbone``; draws weights from torch's default generator.
    """

    name: str
    summary: str
    Options: type
    make: Make


architectures: Registry[Architecture] = Registry("architecture")


def architecture(name: str, summary: str, Options: type, *, images: bool = True) -> Callable[[Make], Make]:
    """Return a decorator that registers ``make`` as an architecture.

    Args:
        name: As users write it.
        summary: One line.
        Options: Frozen dataclass of its options.
        images: It takes ``(C, H, W)`` only; any other sample shape is then a ModelError.
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
