"""A deck that deals samples or classes to clients as evenly as possible."""

from __future__ import annotations

import torch
from torch import Tensor


class Deck:
    """Cards dealt without replacement; once they run out, all of them are shuffled and dealt again.

    After any number of deals, the numbers of times any two cards have been dealt differ by at most one.
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
        # A new round: cards already in this hand come last, so that no hand holds a card twice.
        others = self._cards[: len(self._cards) - len(hand)]
        others = others[torch.randperm(len(others), generator=self._source)]
        self._cards = torch.cat([others, hand])
        self._next = count - len(hand)
        return torch.cat([hand, others[: self._next]])
