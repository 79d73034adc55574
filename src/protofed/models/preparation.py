"""Shapes of samples that an architecture takes, and the preparation of images inside a model."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofed.errors import ConfigError, ModelError


def show(shape: tuple[int, ...] | torch.Size) -> str:
    """Return a shape formatted like ``1×28×28``."""
    return "×".join(str(n) for n in shape) or "()"


def check_shape(input_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of one sample as a tuple of positive integers."""
    shape = tuple(input_shape)
    if not shape or not all(isinstance(n, Integral) and n > 0 for n in shape):
        raise ModelError(f"input_shape {shape} must be positive integers: (C, H, W) or (F,)")
    return tuple(int(n) for n in shape)


def probe(module: nn.Module, input_shape: tuple[int, ...], what: str, hint: str = "") -> Any:
    """Return the output of a module for two zero samples, in eval mode and without gradients.

    The mode of every submodule is restored.
    """
    first = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(()))
    x = torch.zeros(2, *input_shape, dtype=first.dtype, device=first.device)
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            return module(x)
    except Exception as error:  # a user's forward may raise anything
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        advice = f"; {hint}" if hint else ""
        message = f"{what} cannot take samples of shape {show(input_shape)}: {reason.rstrip('.')}{advice}"
        raise ModelError(message) from error
    finally:
        for m, training in modes:
            m.training = training


def flat_width(module: nn.Module, input_shape: tuple[int, ...], what: str) -> int:
    """Return the width of a module's flat output ``(B, width)``."""
    out: Tensor = probe(module, input_shape, what, "use larger images or another architecture")
    if out.dim() != 2:
        raise ModelError(f"{what}: the backbone returns {show(out.shape)} for two samples, not (2, width): flatten")
    return out.shape[1]


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of each channel, for values in [0, 1]."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def of_channels(self, channels: int) -> Normalisation:
        """Return the normalisation for a number of channels: for grey images, the averages over the channels."""
        if len(self.mean) == channels or channels > 1:
            return self
        return Normalisation((sum(self.mean) / len(self.mean),), (sum(self.std) / len(self.std),))


IMAGENET = Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Normalisation of ImageNet, as torchvision's weights require it."""


class Preparation(nn.Module):
    """Images as a backbone requires them: ``(B, C, H, W) -> (B, C, H', W')``.

    Its numbers are constants rather than buffers, so that no method exchanges or averages them.

    Args:
        normalisation: One number for all channels or one for each.
        size: Side in pixels; 0 to leave the size.
        centred: Values ``v`` in [0, 1] arrive as ``2v - 1``, as the engine hands 8-bit images to models.
    """

    def __init__(self, normalisation: Normalisation | None, size: int = 0, *, centred: bool = False) -> None:
        super().__init__()
        self.normalisation = normalisation
        self.size = size
        self.centred = centred
        self._constants: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Return scaled and normalised images."""
        if self.size and x.shape[-2:] != (self.size, self.size):
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=self.size < max(x.shape[-2:]))
        if self.normalisation is None:
            return x
        place = x.dtype, x.device
        if place not in self._constants:
            mean, std = (
                torch.tensor(n, dtype=torch.float64) for n in (self.normalisation.mean, self.normalisation.std)
            )
            given = (2 * mean - 1, 2 * std) if self.centred else (mean, std)
            mean, std = (numbers[:, None, None].to(x.device, x.dtype) for numbers in given)
            self._constants[place] = mean, std
        mean, std = self._constants[place]
        return (x - mean) / std


def prepare(
    normalisation: Normalisation | None, size: int, channels: int, name: str, *, centred: bool = False
) -> Preparation | None:
    """Return the preparation of a model's images; None if there is nothing to do."""
    if normalisation is None and not size:
        return None
    chosen = normalisation.of_channels(channels) if normalisation else None
    if chosen and len(chosen.mean) not in (1, channels):
        raise ConfigError(
            f"{name}: mean and std have {len(chosen.mean)} numbers for images with {channels} channels: set the "
            "options mean and std"
        )
    return Preparation(chosen, size, centred=centred)


def scale_shape(input_shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return the shape ``(C, H', W')`` of a prepared sample; side 0 leaves the size."""
    return (input_shape[0], size, size) if size and len(input_shape) == 3 else input_shape
