"""Dealing samples or classes to clients as evenly as possible."""

from __future__ import annotations

import torch
from torch import Tensor


class Deck:
    """Cards dealt without replacement until they run out, then all of them again.

    After any number of deals the cards have been dealt equally often, give or take one.

    Args:
        cards: ``(n,)``, all different.
        source: Shuffles them.
    """

    def __init__(self, cards: Tensor, source: torch.Generator) -> None:
        self._source = source
        self._cards = cards[torch.randperm(len(cards), generator=source)]
        self._next = 0

    def __len__(self) -> int:
        return len(self._cards)

    def deal(self, count: int) -> Tensor:
        """Return ``count`` different cards, ``count <= n``."""
        hand = self._cards[self._next : self._next + count]
        self._next += len(hand)
        if len(hand) == count:
            return hand
        # A new round: what is in this hand comes last, so that no hand holds a card twice.
        others = self._cards[: len(self._cards) - len(hand)]
        others = others[torch.randperm(len(others), generator=self._source)]
        self._cards = torch.cat([others, hand])
        self._next = count - len(hand)
        return torch.cat([hand, others[: self._next]])
