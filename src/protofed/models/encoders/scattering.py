"""Wavelet scattering of images (Mallat 2012; Bruna and Mallat 2013): fixed features without weights."""

from __future__ import annotations

import math
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofed.models.encoders.contract import ScatteringOptions, encoder

J, L = 2, 8  #: Number of scales and of angles
PATHS = 1 + J * L + L * L  #: Maps of orders 0, 1 and 2: in order 2, only the second scale follows the first


@encoder(
    "scattering", "wavelet scattering of orders 0 to 2, averaged to a grid", ScatteringOptions, kinds=("images",)
)
class Scattering(nn.Module):
    """Moduli of wavelet coefficients of orders 0, 1 and 2, smoothed and averaged to a grid, channel by channel."""

    fine: Tensor
    coarse: Tensor

    def __init__(self, input_shape: tuple[int, ...], options: ScatteringOptions, seed: int) -> None:
        super().__init__()
        C, *sides = input_shape
        self.at_once = 16 if C == 1 else 2  # the maps of more hardly fit a core's cache
        self.padded = [2**J * ((n + 2**J) // 2**J + 1) for n in sides]
        margins = [(whole - n) // 2 for whole, n in zip(self.padded, sides, strict=True)]
        # In the order of F.pad: left, right, above, below.
        self.margins = [
            m
            for n, whole, first in [*zip(sides, self.padded, margins, strict=True)][::-1]
            for m in (first, whole - n - first)
        ]
        angles = [number * math.pi / L for number in range(L)]
        fine, coarse = (torch.stack([morlet(self.padded, scale, angle) for angle in angles]) for scale in range(J))
        # Real and imaginary parts are multiplied alike.
        self.register_buffer("fine", torch.stack([fine, fine], -1).float(), persistent=False)
        quarters = torch.stack(_quarters(torch.stack([coarse, coarse], -1) / 4))
        self.register_buffer("coarse", quarters.float(), persistent=False)
        grids = [min(options.grid, whole // 2**J - 2) for whole in self.padded]
        for resolution in range(J):
            for axis, (whole, grid) in enumerate(zip(self.padded, grids, strict=True)):
                matrix = smoothing(whole, resolution, grid).float()
                self.register_buffer(f"smooth{resolution}{axis}", matrix, persistent=False)
        self.width = C * PATHS * grids[0] * grids[1]

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, width)`` features of images ``(n, C, H, W)`` with values in [0, 1]."""
        x = F.pad(x, self.margins, mode="reflect")
        exporting = torch.compiler.is_compiling()
        transform, modulus = (dft, dft_modulus) if exporting else (_spectrum, _modulus)
        spectrum = transform(x).unsqueeze(-4)
        first = modulus(spectrum * self.fine)
        second = modulus(_halve(spectrum, self.coarse))
        both = modulus(_halve(transform(first).unsqueeze(-4), self.coarse))
        parts = [self._smooth(x.unsqueeze(2), 0), self._smooth(first, 0), self._smooth(second, 1)]
        return torch.cat([*parts, self._smooth(both.flatten(2, 3), 1)], dim=2).flatten(1)

    def _smooth(self, maps: Tensor, resolution: int) -> Tensor:
        """Return the averages ``(n, C, paths, grid, grid)`` of maps at a resolution of ``2**-resolution``."""
        down, right = (self.get_buffer(f"smooth{resolution}{axis}") for axis in range(2))
        averages: Tensor = down @ (maps @ right.t())
        return averages


def _quarters(spectrum: Tensor) -> list[Tensor]:
    """Return the quarters of spectra ``(…, H, W, 2)``, which coincide when every second row and column is kept."""
    h, w = (n // 2 for n in spectrum.shape[-3:-1])
    return [spectrum[..., down : down + h, right : right + w, :].flatten(-3) for down in (0, h) for right in (0, w)]


def _halve(spectrum: Tensor, bank: Tensor) -> Tensor:
    """Return the spectra of filtered maps, subsampled by two."""
    h, w = (n // 2 for n in spectrum.shape[-3:-1])
    first, *others = zip(_quarters(spectrum), bank, strict=True)
    total = first[0] * first[1]
    for quarter, filters in others:
        total.addcmul_(quarter, filters)
    halved: Tensor = total.unflatten(-1, (h, w, 2))
    return halved


def _spectrum(maps: Tensor) -> Tensor:
    """Return the spectra of real maps, with real and imaginary parts side by side."""
    return torch.view_as_real(torch.fft.fft2(maps))


def _modulus(spectrum: Tensor) -> Tensor:
    maps = torch.fft.ifft2(torch.view_as_complex(spectrum))
    return torch.addcmul(maps.real.square(), maps.imag, maps.imag).sqrt()  # half the time of maps.abs()


def dft(maps: Tensor) -> Tensor:
    """Return the spectra ``(…, H, W, 2)`` of real maps ``(…, H, W)`` by matrix products, which can be exported."""
    return torch.stack(_turn(maps, torch.zeros_like(maps), -1.0), -1)


def dft_modulus(spectrum: Tensor) -> Tensor:
    """Return the modulus of the maps whose spectra :func:`dft` returns."""
    real, imaginary = _turn(spectrum[..., 0], spectrum[..., 1], 1.0)
    return (real**2 + imaginary**2).sqrt() / (spectrum.shape[-3] * spectrum.shape[-2])


def _turn(real: Tensor, imaginary: Tensor, sign: float) -> tuple[Tensor, Tensor]:
    for axis in (-1, -2):
        steps = torch.arange(real.shape[axis], dtype=torch.float64)
        angles = torch.outer(steps, steps) % len(steps) * (sign * 2 * math.pi / len(steps))
        cosine, sine = angles.cos().float(), angles.sin().float()
        if axis == -1:
            real, imaginary = real @ cosine - imaginary @ sine, real @ sine + imaginary @ cosine
        else:
            real, imaginary = cosine @ real - sine @ imaginary, sine @ real + cosine @ imaginary
    return real, imaginary


def gabor(sides: list[int], sigma: float, angle: float, frequency: float, slant: float) -> Tensor:
    """Return a wave under a Gaussian envelope that is summed over the periods of a grid, complex128.

    Args:
        sigma: Of the envelope along the wave, in pixels.
        frequency: In radians per pixel.
        slant: Standard deviation along the wave, divided by that across it.
    """
    rows, columns = (torch.arange(n, dtype=torch.float64) for n in sides)
    total = torch.zeros(*sides, dtype=torch.complex128)
    for below, beside in product(range(-2, 3), repeat=2):
        down, right = (rows + below * sides[0])[:, None], columns + beside * sides[1]
        along = down * math.cos(angle) + right * math.sin(angle)
        across = right * math.cos(angle) - down * math.sin(angle)
        envelope = (-(along**2 + (slant * across) ** 2) / (2 * sigma**2)).exp()
        total += torch.polar(envelope, frequency * along)
    return total * (slant / (2 * math.pi * sigma**2))


def morlet(sides: list[int], scale: int, angle: float) -> Tensor:
    """Return the (real) transform of a Morlet wavelet: a wave, corrected to a mean of 0."""
    sigma, frequency = 0.8 * 2**scale, 0.75 * math.pi / 2**scale
    wave, envelope = (gabor(sides, sigma, angle, f, 4 / L) for f in (frequency, 0.0))
    spectrum: Tensor = torch.fft.fft2(wave - wave.sum() / envelope.sum() * envelope)
    return spectrum.real


def smoothing(whole: int, resolution: int, grid: int) -> Tensor:
    """Return the matrix that smooths one axis of a map, keeps every fourth pixel, and averages these to a grid.

    A Gaussian is a product of one for each axis, and so is all that follows it.

    Args:
        resolution: The map has ``whole / 2**resolution`` pixels.
    """
    sigma, size = 0.8 * 2 ** (J - 1), whole // 2**resolution
    places = torch.arange(whole, dtype=torch.float64) + whole * torch.arange(-2, 3, dtype=torch.float64)[:, None]
    gaussian = (-(places**2) / (2 * sigma**2)).exp().sum(0) / (sigma * math.sqrt(2 * math.pi))
    spectrum = torch.fft.fft(gaussian).real
    if resolution:  # a coarser map has the lower frequencies alone
        spectrum = torch.cat([spectrum[: size // 2], spectrum[-(size // 2) :]])
    smooth = torch.fft.ifft(torch.fft.fft(torch.eye(size, dtype=torch.float64), dim=0) * spectrum[:, None], dim=0)
    kept = smooth.real[:: 2 ** (J - resolution)][1:-1]  # without the margin
    return F.adaptive_avg_pool1d(kept.t()[None], grid)[0].t().contiguous()
