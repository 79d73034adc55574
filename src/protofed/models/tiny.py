"""A network with about as many weights as a set of prototypes has numbers, for images, series and vectors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from protofed.errors import ModelError
from protofed.models.catalogue import Backbone, architecture, pairs
from protofed.models.preparation import show
from protofed.models.text import Bag, TextBackbone, Texts
from protofed.options import Options, remote

ROWS = 512  #: Rows of the table of words, of eight numbers each
CELLS = 16  #: Places to which maps are pooled: 4×4 of an image, 16 of a series


@dataclass(frozen=True)
class TinyOptions(Options):
    """Options of ``tiny``."""

    channels: tuple[int, ...] = remote(
        (8, 16, 16), "channels of the convolutions: 6,218 weights for 1×28×28 and K = 10 with d = 256", least=2
    )
    hidden: int = remote(
        0, "units for vectors (0 = for about as many weights as with convolutions and K = 10)", least=0
    )
    tokens: tuple[int, ...] = remote(
        (), "inputs that are tokens: first and number of each text's; set by data.text", least=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.channels:
            raise ValueError("channels must name at least one convolution, e.g. 8,16,16")
        pairs(self.tokens, "tokens")


def tiny_width(input_shape: Sequence[int], channels: Sequence[int] = (8, 16, 16), hidden: int = 0) -> int:
    """Return the length of the features: pooled maps, or the units for vectors.

    Args:
        hidden: Units for vectors; 0 for about the weights of a network for images of one channel and ten classes,
            but at least as many as the last convolution has channels.
    """
    if len(input_shape) in (2, 3):
        return CELLS * channels[-1]
    if len(input_shape) != 1:
        raise ModelError(
            f"tiny has no form for samples of shape {show(tuple(input_shape)) or '()'}: it takes vectors (F,), "
            "series (C, T) and images (C, H, W)"
        )
    convolutions = sum(c * (9 * before + 3) for before, c in zip((1, *channels), channels, strict=False))
    per_unit = input_shape[0] + 3 + 10
    return hidden or max(channels[-1], round((convolutions + 10 * CELLS * channels[-1]) / per_unit))


@architecture(
    "tiny",
    "some 6,000 weights without running statistics: beacon's; its features have length 256",
    TinyOptions,
    images=False,
)
def _tiny(input_shape: tuple[int, ...], d: int, options: TinyOptions) -> Backbone:
    """Normalisation within each sample, so that there is nothing to average but weights.

    Images pass 3×3 convolutions, each with GroupNorm (groups of four channels) and ReLU, and are pooled to 4×4. A
    convolution halves its map while at least 4×4 remain. Series pass convolutions of 9 steps, which are as large,
    and are pooled to 16 steps. Vectors pass one layer. So do tokens, after a small table of words.
    """
    width = tiny_width(input_shape, options.channels, options.hidden)
    layers = OrderedDict[str, nn.Module]()
    if len(input_shape) == 1:
        inputs = input_shape[0]
        if options.tokens:
            texts = Texts(pairs(options.tokens, "tokens"), input_shape, "tiny")
            layers["words"] = TextBackbone(texts, Bag(ROWS, CELLS // 2, pairs=False))
            inputs = CELLS // 2 + texts.numbers
        layers["linear"] = nn.Linear(inputs, width)
        layers["norm"] = nn.LayerNorm(width)
        layers["relu"] = nn.ReLU()
        return Backbone(nn.Sequential(layers))
    image = len(input_shape) == 3
    before, *sides = input_shape
    side, cells = min(sides), 4 if image else CELLS
    for i, c in enumerate(options.channels, start=1):
        half = -(-side // 2)
        stride = 2 if half >= cells else 1
        side = half if stride == 2 else side
        layers[f"conv{i}"] = (
            nn.Conv2d(before, c, 3, stride, padding=1) if image else nn.Conv1d(before, c, 9, stride, padding=4)
        )
        layers[f"norm{i}"] = nn.GroupNorm(c // 4 if c % 4 == 0 else 1, c)
        layers[f"relu{i}"] = nn.ReLU()
        before = c
    layers["pool"] = nn.AdaptiveAvgPool2d(cells) if image else nn.AdaptiveAvgPool1d(cells)
    layers["flatten"] = nn.Flatten()
    return Backbone(nn.Sequential(layers), stem="conv1")
