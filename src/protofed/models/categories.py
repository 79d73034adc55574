"""Learned embeddings of categories, whose inputs are one per category."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

MOST = 600
"""Largest embedding, as in fastai."""


def embedding_size(categories: int) -> int:
    """Return the length of the embedding of one of so many categories: ``min(600, round(1.6 n^0.56))``.

    This is the rule of fastai's tabular models (``emb_sz_rule``).
    """
    return min(MOST, round(1.6 * math.pow(categories, 0.56)))


class CategoryEmbeddings(nn.Module):
    """Rows of learned tables in place of the inputs of categories (Guo and Berkhahn, 2016).

    A category's ``n`` inputs, of which one is 1, times a table of ``n`` rows are a row of that table. A last row
    stands for a value that is missing or unknown, of which no input is 1; it begins at 0, the others as those of
    ``torch.nn.Embedding``. The products make the layer one that every executor and every format of export knows.
    """

    def __init__(self, blocks: Sequence[tuple[int, int]]) -> None:
        super().__init__()
        self.blocks = tuple(blocks)
        self.tables = nn.ModuleList(nn.Linear(n + 1, embedding_size(n), bias=False) for _, n in blocks)
        for table in self.tables:
            assert isinstance(table, nn.Linear)
            nn.init.normal_(table.weight)
            nn.init.zeros_(table.weight[:, -1:])

    def width(self, inputs: int) -> int:
        """Return the number of outputs for a number of inputs."""
        return inputs + sum(embedding_size(n) - n for _, n in self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(B, width)`` for inputs ``(B, F)``; those of no category stay as they are."""
        parts, at = [], 0
        for (first, n), table in zip(self.blocks, self.tables, strict=True):
            own = x[:, first : first + n]
            none = 1 - own.sum(1, keepdim=True)
            parts += [x[:, at:first], table(torch.cat([own, none], 1))]
            at = first + n
        return torch.cat([*parts, x[:, at:]], 1)
