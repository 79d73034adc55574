"""Random features, hashed counts of words, and samples as they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofed.compute.seeding import derive, generator
from protofed.errors import ConfigError
from protofed.models.catalogue import TextOptions
from protofed.models.encoders.contract import KINDS, RandomOptions, check_kind, encoder
from protofed.models.preparation import show
from protofed.models.text import Texts, with_pairs
from protofed.options import NoOptions, remote

SIDE = 6  #: Rows and columns of a filter
FLAT = 10 / 255**2
"""Added to the variance of a patch, so that noise in one without contrast is not raised (Coates and Ng, 2011)."""
THRESHOLD = 0.25  #: What a filter's response must exceed to count, to either side
LENGTHS = (7, 9, 11)  #: Lengths of the kernels of series (Dempster, Petitjean and Webb, 2020)
FACTOR = 0x9E3779B97F4A7C15 - 2**64
"""2⁶⁴ divided by the golden ratio, for multiplicative hashing (Knuth, 1973, 6.4)."""


class Filters(nn.Module):
    """Responses of random filters to normalised patches of an image, averaged to a grid (Coates and Ng, 2011)."""

    filters: Tensor
    at_once = 4

    def __init__(self, input_shape: tuple[int, ...], options: RandomOptions, seed: int) -> None:
        super().__init__()
        C = input_shape[0]
        drawn = torch.randn(
            options.filters, C, SIDE, SIDE, dtype=torch.float64, generator=generator(seed, "encoder filters")
        )
        drawn -= drawn.mean((1, 2, 3), keepdim=True)
        drawn /= drawn.flatten(1).norm(dim=1)[:, None, None, None]
        self.register_buffer("filters", drawn.float(), persistent=False)
        rows, columns = (min(3 if C == 1 else 4, n - SIDE + 1) for n in input_shape[1:])
        self.grid = (rows, columns)
        self.width = 2 * options.filters * self.grid[0] * self.grid[1]

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, width)`` features of images ``(n, C, H, W)`` with values in [0, 1]."""
        mean, square = (F.avg_pool2d(v.mean(1, keepdim=True), SIDE, stride=1) for v in (x, x * x))
        deviation = ((square - mean * mean).clamp(min=0) + FLAT).sqrt()
        response = F.conv2d(x, self.filters) / deviation
        sides = [F.relu(sign * response - THRESHOLD) for sign in (1, -1)]
        return torch.cat([F.adaptive_avg_pool2d(side, self.grid).flatten(1) for side in sides], dim=1)


class Waves(nn.Module):
    """Vectors beside random Fourier features of a Gaussian kernel of deviation √F (Rahimi and Recht, 2007)."""

    frequencies: Tensor
    phases: Tensor
    at_once = 1024

    def __init__(self, input_shape: tuple[int, ...], options: RandomOptions, seed: int) -> None:
        super().__init__()
        (F_,) = input_shape
        source = generator(seed, "encoder waves")
        frequencies = torch.randn(F_, options.waves, generator=source) / math.sqrt(F_)
        self.register_buffer("frequencies", frequencies, persistent=False)
        self.register_buffer("phases", 2 * math.pi * torch.rand(options.waves, generator=source), persistent=False)
        self.width = F_ + options.waves

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, width)`` features of vectors ``(n, F)``."""
        waves = math.sqrt(2 / len(self.phases)) * (x @ self.frequencies + self.phases).cos()
        return torch.cat([x, waves], dim=1)


class Kernels(nn.Module):
    """Random convolutions of series (Dempster, Petitjean and Webb, 2020): share of positive values, and maximum.

    Series are standardised channel by channel; means and standard deviations are features, too.
    """

    at_once = 64

    def __init__(self, input_shape: tuple[int, ...], options: RandomOptions, seed: int) -> None:
        super().__init__()
        C, T = input_shape
        if LENGTHS[0] > T:
            raise ConfigError(f"encoder.name=random needs series of at least {LENGTHS[0]} steps, not {T}")
        source = generator(seed, "encoder kernels")
        dilations = [2**e for e in range(int(math.log2(max(1, (T - 1) // (LENGTHS[0] - 1)))) + 1)]
        fits = [(k, d, p) for k, d, p in product(LENGTHS, dilations, (0, 1)) if (k - 1) * d < T]
        drawn = torch.randint(len(fits), (options.kernels,), generator=source).bincount(minlength=len(fits))
        self.groups = [(*fit, int(number)) for fit, number in zip(fits, drawn, strict=True) if number]
        for place, (length, _, _, number) in enumerate(self.groups):
            weights = torch.randn(number, C, length, generator=source)
            weights = weights - weights.mean((1, 2), keepdim=True)
            self.register_buffer(f"weights{place}", weights / math.sqrt(C), persistent=False)
            self.register_buffer(f"biases{place}", 2 * torch.rand(number, generator=source) - 1, persistent=False)
        self.width = 2 * C + 2 * options.kernels

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, width)`` features of series ``(n, C, T)``."""
        mean = x.mean(2)
        deviation = x.std(2, unbiased=False)
        x = (x - mean.unsqueeze(2)) / deviation.clamp(min=1e-6).unsqueeze(2)
        parts = [mean, deviation]
        for place, (length, dilation, padded, _) in enumerate(self.groups):
            weights, biases = self.get_buffer(f"weights{place}"), self.get_buffer(f"biases{place}")
            y = F.conv1d(x, weights, biases, padding=padded * (length - 1) * dilation // 2, dilation=dilation)
            parts += [(y > 0).float().mean(2), y.amax(2)]
        return torch.cat(parts, dim=1)


@encoder("random", "random filters of images, Fourier features of vectors, convolutions of series", RandomOptions)
def random_features(input_shape: tuple[int, ...], options: RandomOptions, seed: int) -> nn.Module:
    """Return the random features of a kind of samples."""
    kind = KINDS[len(input_shape)]
    if kind == "images":
        check_kind("random", input_shape, ("images",))
        return Filters(input_shape, options, seed)
    return Waves(input_shape, options, seed) if kind == "vectors" else Kernels(input_shape, options, seed)


@dataclass(frozen=True)
class HashingOptions(TextOptions):
    """Options of ``hashing``."""

    buckets: int = remote(1024, "numbers per text", least=2, most=2**16)
    pairs: bool = remote(True, "count pairs of words in succession, too")


@encoder("hashing", "hashed counts of words and pairs of words: texts as tokens", HashingOptions, kinds=("texts",))
class Hashing(nn.Module):
    """Signed counts of words in buckets (Weinberger et al., 2009), of length 1; other inputs stay beside them.

    The square root of counts keeps frequent words from hiding the others.
    """

    at_once = 64

    def __init__(self, input_shape: tuple[int, ...], options: HashingOptions, seed: int) -> None:
        super().__init__()
        self.texts = Texts(options.places, input_shape, "hashing")
        self.buckets, self.pairs = options.buckets, options.pairs
        self.start = derive(seed, "encoder hashing") % 2**62
        self.width = options.buckets + self.texts.numbers

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, width)`` features of samples ``(n, F)``."""
        tokens, numbers = self.texts(x)
        tokens = with_pairs(tokens) if self.pairs else tokens
        mixed = (tokens ^ self.start) * FACTOR
        mixed = (mixed ^ (mixed >> 29)) * FACTOR
        sign = ((mixed >> 40) & 1) * 2 - 1
        bucket = ((mixed >> 41) & 0xFFFFF).remainder(self.buckets)
        counts = torch.zeros(len(x), self.buckets).scatter_add_(1, bucket, (sign * (tokens > 0)).float())
        return torch.cat([F.normalize(counts.sign() * counts.abs().sqrt(), dim=1), numbers], 1)


@encoder("identity", "the samples themselves, flattened", NoOptions)
class Flat(nn.Module):
    """Samples as vectors; nothing else."""

    at_once = 1024

    def __init__(self, input_shape: tuple[int, ...], options: NoOptions, seed: int) -> None:
        super().__init__()
        self.width = math.prod(input_shape)
        if self.width < 1:
            raise ConfigError(f"encoder.name=identity: samples of shape {show(input_shape)} hold no numbers")

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, width)`` numbers."""
        return x.flatten(1)
