"""Encoders of texts as tokens: hashed counts of words, and frozen models of Hugging Face."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofed.compute.seeding import derive
from protofed.models.catalogue import TextOptions
from protofed.models.encoders.contract import encoder
from protofed.models.hugging import TransformersOptions, build_pretrained
from protofed.models.text import Texts, with_pairs
from protofed.options import remote

FACTOR = 0x9E3779B97F4A7C15 - 2**64
"""2⁶⁴ divided by the golden ratio, for multiplicative hashing (Knuth, 1973, 6.4)."""


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


@encoder(
    "transformers",
    "a frozen text model of Hugging Face from a local folder: texts as tokens",
    TransformersOptions,
    kinds=("texts",),
)
class FrozenTransformers(nn.Module):
    """Pooled states of a frozen model."""

    at_once = 16

    def __init__(self, input_shape: tuple[int, ...], options: TransformersOptions, seed: int) -> None:
        super().__init__()
        self.network = build_pretrained(options, input_shape).eval()
        with torch.no_grad():
            self.width = self.network(torch.zeros(1, *input_shape)).shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, width)`` features of samples ``(n, F)``."""
        features: Tensor = self.network(x)
        return features
