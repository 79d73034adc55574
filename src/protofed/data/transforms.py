"""Transforms of images: augmentation of a client's training samples, and normalisation of all samples.

The functions compute for many images at once what ``torchvision.transforms.v2`` computes for one, with parameters
drawn per sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.errors import ConfigError
from protofed.options import Options, plain, remote
from protofed.samples import Samples

_ROTATED_AT_ONCE = 2**22  #: Pixels that are rotated together, which bounds the memory for their coordinates


@dataclass(frozen=True)
class TransformOptions(Options):
    """Transforms of images: crop, flip and rotation of training steps; normalisation of all samples."""

    crop: int = remote(
        0,
        "training: black pixels added at each side before a crop of the image's own size is drawn, as RandomCrop",
        least=0,
    )
    flip: float = remote(
        0.0, "training: probability of a horizontal flip, as RandomHorizontalFlip", least=0, most=1
    )
    rotation: float = remote(
        0.0, "training: largest angle in degrees, to either side, as RandomRotation", least=0, most=180
    )
    mean: tuple[float, ...] = remote(
        (), "mean of each channel, of 0 … 1 for 8-bit images, as Normalize (empty: 0.5)", least=-1e6, most=1e6
    )
    std: tuple[float, ...] = remote(
        (), "standard deviation of each channel, as Normalize (empty: 0.5)", above=0, most=1e6
    )

    @property
    def augments(self) -> bool:
        """Return whether training samples are augmented."""
        return bool(self.crop or self.flip or self.rotation)

    def check(self, shape: tuple[int, ...]) -> None:
        """Check that the transforms suit the samples."""
        used = [name for name, value in plain(self).items() if value != getattr(TransformOptions, name, ())]
        if used and len(shape) != 3:
            raise ConfigError(
                f"transforms.{used[0]} is for images of channels, rows and columns, and samples have the shape "
                f"{shape}: leave it out"
            )
        if self.crop and self.crop >= min(shape[1:]):
            raise ConfigError(f"transforms.crop = {self.crop}: images of {shape[1]}×{shape[2]} pixels need less")
        for name in ("mean", "std"):
            number = len(getattr(self, name))
            if number not in (0, 1) and number != shape[0]:
                raise ConfigError(f"transforms.{name} has {number} values, but images have {shape[0]} channels")


def augmentation(options: TransformOptions) -> Callable[[Samples, torch.Generator], Samples] | None:
    """Return the augmentation of a client's training samples for a round, or None."""
    return partial(_augment, options) if options.augments else None


def normalisation(options: TransformOptions) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return mean and standard deviation of the normalisation, 0.5 where one is missing; None without any."""
    if not options.mean and not options.std:
        return None
    mean, std = options.mean or (0.5,), options.std or (0.5,)
    channels = max(len(mean), len(std))
    return mean * (channels // len(mean)), std * (channels // len(std))


def _augment(options: TransformOptions, samples: Samples, source: torch.Generator) -> Samples:
    """Return the samples with crop, flip and rotation, in this order, drawn from ``source`` for each sample."""
    x, n = samples.x, len(samples)
    if options.crop or options.flip:
        down, right = torch.randint(-options.crop, options.crop + 1, (2, n), generator=source).to(x.device)
        flips = torch.rand(n, generator=source) < options.flip
        x = crop_and_flip(x, down, right, flips.to(x.device))
    if options.rotation:
        angles = (2 * torch.rand(n, generator=source, dtype=torch.float64) - 1) * options.rotation
        x = rotate(x, angles.to(x.device), "nearest")
    return Samples(x, samples.y)


def crop_and_flip(x: Tensor, down: Tensor, right: Tensor, flips: Tensor) -> Tensor:
    """Move a window over images ``(n, C, H, W)`` by ``(n,)`` rows and columns, on black, and flip some of them.

    Returns:
        ``(n, C, H, W)``, in the memory layout of ``x``.
    """
    _, _, H, W = x.shape
    columns = torch.arange(W, device=x.device)
    columns = torch.where(flips[:, None], W - 1 - columns, columns) + right[:, None]
    rows = torch.arange(H, device=x.device) + down[:, None]
    inside = ((rows >= 0) & (rows < H))[:, :, None] & ((columns >= 0) & (columns < W))[:, None, :]
    images = torch.arange(len(x), device=x.device)[:, None, None]
    found = x.permute(0, 2, 3, 1)[images, rows.clamp(0, H - 1)[:, :, None], columns.clamp(0, W - 1)[:, None, :]]
    return torch.empty_like(x).copy_((found * inside[..., None]).permute(0, 3, 1, 2))


def rotate(x: Tensor, degrees: Tensor, interpolation: str) -> Tensor:
    """Rotate images ``(n, C, H, W)`` by ``(n,)`` degrees counter-clockwise around their centres, on black.

    Returns:
        ``(n, C, H, W)`` of the same type, in the memory layout of ``x``.
    """
    _, _, H, W = x.shape
    real = x.dtype if x.is_floating_point() else torch.float32
    X = torch.linspace(0.5 * (1 - W), 0.5 * (W - 1), W, device=x.device, dtype=real)
    Y = torch.linspace(0.5 * (1 - H), 0.5 * (H - 1), H, device=x.device, dtype=real)[:, None]
    result = torch.empty_like(x)
    size = max(1, _ROTATED_AT_ONCE // (H * W))
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        radians = degrees[part].deg2rad()[:, None, None]
        cos, sin = radians.cos().to(real), radians.sin().to(real)
        grid = torch.stack([(cos * X - sin * Y) / (0.5 * W), (sin * X + cos * Y) / (0.5 * H)], dim=-1)
        turned = F.grid_sample(x[part].to(real), grid, mode=interpolation, align_corners=False)
        result[part] = turned if x.is_floating_point() else turned.round()
    return result
