"""Architectures for texts as tokens: a bag of words, convolutions, a recurrent network and a transformer.

All begin with a learned table of vectors, to whose rows tokens are assigned by their remainder. Words that share a
row are one word to the network, which costs little where rows are many (Weinberger et al., 2009).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from protofed.errors import ModelError, require
from protofed.models.basic import dense
from protofed.models.catalogue import Backbone, TextOptions, architecture
from protofed.models.preparation import show
from protofed.options import remote

PAIR = 1_000_003  #: Factor of the first of two tokens in the number of the pair


@dataclass(frozen=True)
class TableOptions(TextOptions):
    """Options of all networks for texts that learn their own vectors of words."""

    rows: int = remote(4096, "rows of the table of words, which several words may share", least=2, most=2**24)
    width: int = remote(32, "numbers per row", least=1, most=2**14)


class Texts(nn.Module):
    """Divides samples into tokens and other numbers."""

    def __init__(self, places: Sequence[tuple[int, int]], input_shape: Sequence[int], name: str) -> None:
        super().__init__()
        if len(input_shape) != 1:
            raise ModelError(
                f"{name} takes texts as tokens (L,), not samples of shape {show(tuple(input_shape))}: use cnn2 for "
                "images, cnn1d for series"
            )
        (inputs,) = input_shape
        places = places or [(0, inputs)]
        require(
            places[-1][0] + places[-1][1] <= inputs, f"{name}: tokens name input {sum(places[-1]) - 1} of {inputs}"
        )
        self.places = tuple(places)
        at = [0, *(first + n for first, n in places)]
        self.others = tuple(zip(at, [*(first for first, _ in places), inputs], strict=True))
        self.length = sum(n for _, n in places)
        self.numbers = inputs - self.length

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``(B, length)`` int64 tokens, 0 for none, and ``(B, numbers)`` other inputs."""
        tokens = [x[:, first : first + n] for first, n in self.places]
        others = [x[:, first:end] for first, end in self.others]
        return torch.cat(tokens, 1).long(), torch.cat(others, 1)


class Words(nn.Module):
    """A row of a learned table per token: ``(B, L, width)``, zeros where there is no token.

    Rows begin as those of ``torch.nn.Embedding``, with variance 1.
    """

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width)
        self.rows = rows

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the rows of tokens ``(B, L)`` int64."""
        rows: Tensor = self.table(tokens.remainder(self.rows))
        return rows * (tokens > 0).unsqueeze(-1)


def with_pairs(tokens: Tensor) -> Tensor:
    """Return tokens ``(B, L)``, and after them the pairs in succession, ``(B, 2L - 1)`` in all; 0 for none."""
    first, second = tokens[:, :-1], tokens[:, 1:]
    return torch.cat([tokens, (first * PAIR + second) * (second > 0)], 1)


class TextBackbone(nn.Module):
    """A network for tokens, with the other inputs of a sample beside its features."""

    def __init__(self, texts: Texts, body: nn.Module) -> None:
        super().__init__()
        self.texts, self.body = texts, body

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(B, width)`` features of samples ``(B, inputs)``."""
        tokens, numbers = self.texts(x)
        features: Tensor = self.body(tokens)
        return torch.cat([features, numbers.to(features.dtype)], 1) if self.texts.numbers else features


def average(values: Tensor, tokens: Tensor) -> Tensor:
    """Return the mean ``(B, c)`` of values ``(B, L, c)`` over the places with tokens; 0 if there is none."""
    present = (tokens > 0).to(values.dtype).unsqueeze(-1)
    mean: Tensor = (values * present).sum(1) / present.sum(1).clamp(min=1)
    return mean


class Bag(nn.Module):
    """√n times the mean of the rows of n words, and of pairs of words in succession (Joulin et al., 2016).

    The mean of many words varies little from text to text; with the factor its variance is that of one row.
    """

    def __init__(self, rows: int, width: int, *, pairs: bool = True) -> None:
        super().__init__()
        self.words, self.pairs = Words(rows, width), pairs

    def forward(self, tokens: Tensor) -> Tensor:
        """Return ``(B, width)`` features of tokens ``(B, L)``."""
        tokens = with_pairs(tokens) if self.pairs else tokens
        number = (tokens > 0).sum(1, keepdim=True).clamp(min=1)
        rows = self.words(tokens)
        features: Tensor = rows.sum(1) / number.to(rows.dtype).sqrt()
        return features


class Convolutions(nn.Module):
    """The largest response of each filter over the words of a text (Kim, 2014)."""

    def __init__(self, options: TextCnnOptions) -> None:
        super().__init__()
        self.words = Words(options.rows, options.width)
        self.layers = nn.ModuleList(
            nn.Conv1d(options.width, options.channels, kernel, padding=kernel - 1) for kernel in options.kernels
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Return ``(B, channels · kernels)`` features of tokens ``(B, L)``."""
        rows = self.words(tokens).transpose(1, 2)
        return torch.cat([layer(rows).amax(2).relu() for layer in self.layers], 1)


class Gated(nn.Module):
    """The mean of the states of a gated recurrent network (Cho et al., 2014), which stay where words are absent.

    Its gates are written out, because a stack of clients has no fused recurrent layer.
    """

    def __init__(self, rows: int, width: int, hidden: int) -> None:
        super().__init__()
        self.words, self.hidden = Words(rows, width), hidden
        self.inputs, self.states = nn.Linear(width, 3 * hidden), nn.Linear(hidden, 3 * hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return ``(B, hidden)`` features of tokens ``(B, L)``."""
        given = self.inputs(self.words(tokens))
        present = (tokens > 0).to(given.dtype).unsqueeze(-1)
        state = torch.zeros_like(given[:, 0, : self.hidden])
        states = []
        for step in range(tokens.shape[1]):
            reset, update, new = given[:, step].chunk(3, 1)
            own_reset, own_update, own_new = self.states(state).chunk(3, 1)
            gate = (update + own_update).sigmoid()
            candidate = (new + (reset + own_reset).sigmoid() * own_new).tanh()
            state = state + present[:, step] * (1 - gate) * (candidate - state)
            states.append(state)
        return average(torch.stack(states, 1), tokens)


class Attention(nn.Module):
    """A layer of a transformer with the normalisation before each part (Xiong et al., 2020), without dropout."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.given, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor, absent: Tensor) -> Tensor:
        """Return ``(B, L, width)`` for x of this shape; places that are absent ``(B, L)`` are not looked at."""
        parts = self.given(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        weights = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        weights = weights.masked_fill(absent[:, None, None, :], torch.finfo(weights.dtype).min / 2).softmax(-1)
        x = x + self.out((weights @ value).transpose(1, 2).flatten(2))
        result: Tensor = x + self.down(self.up(self.norm2(x)).relu())
        return result


class Transformer(nn.Module):
    """The mean over the words of a text of the last layer of a transformer (Vaswani et al., 2017)."""

    def __init__(self, length: int, options: TextTransformerOptions) -> None:
        super().__init__()
        self.words = Words(options.rows, options.width)
        self.places = nn.Parameter(torch.randn(length, options.width) / math.sqrt(options.width))
        self.layers = nn.ModuleList(
            Attention(options.width, options.heads, options.hidden) for _ in range(options.layers)
        )
        self.norm = nn.LayerNorm(options.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return ``(B, width)`` features of tokens ``(B, L)``."""
        x = self.words(tokens) + self.places
        for layer in self.layers:
            x = layer(x, tokens == 0)
        return average(self.norm(x), tokens)


@architecture(
    "text_bag", "words and their pairs (Joulin et al., 2016): texts as tokens", TableOptions, images=False
)
def _text_bag(input_shape: tuple[int, ...], d: int, options: TableOptions) -> Backbone:
    """A linear model of words and of pairs of words, as fastText's, with a layer and ReLU."""
    texts = Texts(options.places, input_shape, "text_bag")
    return _backbone(texts, Bag(options.rows, options.width), options.width, d)


@dataclass(frozen=True)
class TextCnnOptions(TableOptions):
    """Options of ``text_cnn``."""

    channels: int = remote(32, "filters of each kernel", least=1)
    kernels: tuple[int, ...] = remote((3, 4, 5), "words that the filters see", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.kernels:
            raise ValueError("kernels must name at least one number of words, e.g. 3,4,5")


@architecture("text_cnn", "filters over words (Kim, 2014): texts as tokens", TextCnnOptions, images=False)
def _text_cnn(input_shape: tuple[int, ...], d: int, options: TextCnnOptions) -> Backbone:
    """The network of "Convolutional neural networks for sentence classification" without dropout."""
    texts = Texts(options.places, input_shape, "text_cnn")
    return _backbone(texts, Convolutions(options), options.channels * len(options.kernels), d)


@dataclass(frozen=True)
class TextGruOptions(TableOptions):
    """Options of ``text_gru``."""

    hidden: int = remote(32, "numbers of a state", least=1)


@architecture(
    "text_gru", "gated recurrent network (Cho et al., 2014): texts as tokens", TextGruOptions, images=False
)
def _text_gru(input_shape: tuple[int, ...], d: int, options: TextGruOptions) -> Backbone:
    """One layer in the order of the words."""
    texts = Texts(options.places, input_shape, "text_gru")
    return _backbone(texts, Gated(options.rows, options.width, options.hidden), options.hidden, d)


@dataclass(frozen=True)
class TextTransformerOptions(TableOptions):
    """Options of ``text_transformer``."""

    layers: int = remote(1, "layers of attention", least=1)
    heads: int = remote(4, "heads of each; width is a multiple", least=1)
    hidden: int = remote(64, "units of each layer's perceptron", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ValueError(f"width must be a multiple of heads={self.heads}, not {self.width}")


@architecture(
    "text_transformer",
    "a small transformer (Vaswani et al., 2017): texts as tokens",
    TextTransformerOptions,
    images=False,
)
def _text_transformer(input_shape: tuple[int, ...], d: int, options: TextTransformerOptions) -> Backbone:
    """Learned places, normalisation before each part, and the mean over words."""
    texts = Texts(options.places, input_shape, "text_transformer")
    return _backbone(texts, Transformer(texts.length, options), options.width, d)


def _backbone(texts: Texts, body: nn.Module, width: int, d: int) -> Backbone:
    return Backbone(TextBackbone(texts, body), dense(width + texts.numbers, d))
