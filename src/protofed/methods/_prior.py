"""Balanced softmax: a client's class frequencies are added to its outputs while it trains.

Ren et al., "Balanced Meta-Softmax for Long-Tailed Visual Recognition", NeurIPS 2020; Menon et al., "Long-tail
learning via logit adjustment", ICLR 2021. What the network itself answers is then free of class bias, and any
frequencies can be added to it again for a prediction.

Client state of methods that use it: ``prior`` ``(K,)``, π_i, and ``own`` ``(K,)`` bool, its classes A_i.
"""

from __future__ import annotations

import torch
from torch import Tensor

from protofed.methods.contract import Batch, Tensors

RHO = 1.0
"""ρ of the log-prior where a method has no such option."""


def log_prior(counts: Tensor, rho: float = RHO, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return ``π(y) = log((n_y + ρ)/(n + ρK))``, ``(K,)``.

    Args:
        counts: ``(K,)`` int64 samples per class ``n_y``.
        rho: ``ρ``, above 0.
        dtype: Of the result.
    """
    smoothed = counts.double() + rho
    return (smoothed / smoothed.sum()).log().to(dtype)


def own_classes(counts: Tensor, dtype: torch.dtype, *, balanced: bool) -> Tensors:
    """Return the state of a client that remembers its classes A_i, and for balanced softmax π_i.

    Args:
        counts: ``(K,)`` int64 samples per class.
        dtype: Of π_i.
        balanced: Whether π_i is needed.
    """
    own: Tensors = {"own": counts > 0}
    return own | {"prior": log_prior(counts, dtype=dtype)} if balanced else own


def over(scores: Tensor, classes: Tensor) -> Tensor:
    """Return scores in which the classes outside a set have no chance.

    Args:
        scores: ``(B, K)``, or ``(K,)``.
        classes: ``(K,)`` bool, the set.
    """
    return scores.masked_fill(~classes, torch.finfo(scores.dtype).min)


def balanced_cross_entropy(batch: Batch, logits: Tensor, state: Tensors) -> Tensor:
    """Return the mean cross-entropy of ``f(x) + π_i`` over A_i: absent classes are left out.

    Args:
        batch: Samples of one step.
        logits: ``(B, K)`` outputs ``f(x)``.
        state: π_i and A_i.
    """
    return batch.cross_entropy(over(logits + state["prior"], state["own"]))


def balanced_scores(logits: Tensor, state: Tensors) -> Tensors:
    """Return scores of the classes of A_i, ``head`` given the client's class frequencies, ``all_classes`` without.

    A client without training samples may give any answer.

    Args:
        logits: ``(B, K)`` outputs ``f(x)``.
        state: π_i and A_i.
    """
    own = state["own"] | ~state["own"].any()
    return {
        "head": over(logits + state["prior"], own),
        "all_classes": over(logits, own),
    }
