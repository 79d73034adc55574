"""Balanced softmax: a client's class frequencies are added to its outputs while it trains.

Ren et al., "Balanced Meta-Softmax for Long-Tailed Visual Recognition", NeurIPS 2020; Menon et al., "Long-tail
learning via logit adjustment", ICLR 2021. What the network itself answers is then free of class bias, and any
frequencies can be added to it again for a prediction.

Client state of methods that use it: ``prior`` ``(K,)``, π_i, and ``own`` ``(K,)`` bool, its classes A_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

import torch
from torch import Tensor

from protofed.methods.given import Batch, Tensors
from protofed.methods.traits import ALL_CLASSES, HEAD
from protofed.options import Options, remote
from protofed.runs.rules import Rule

if TYPE_CHECKING:
    from protofed.methods.contract import Method as Base
    from protofed.methods.contract import Terms
    from protofed.models import SplitModel
else:
    Base = Generic

RHO = 1.0  #: ρ of the log-prior where a method has no such option


@dataclass(frozen=True)
class SoftmaxOptions(Options):
    """The cross-entropy of a private head, for methods that have one."""

    softmax: Literal["plain", "balanced"] = remote(
        "plain",
        "cross-entropy of f(x), or of f(x) + π_i over the client's classes: balanced, as beacon's expert; predicts "
        "over these, with π_i (head) and without (all_classes)",
    )

    @property
    def balanced(self) -> bool:
        """Return whether clients remember π_i."""
        return self.softmax == "balanced"

    def head_rules(self, *others: Rule) -> tuple[Rule, ...]:
        """Return the rules of a method: the head, others, and the head for equal frequencies if it is balanced."""
        return (HEAD, *others, ALL_CLASSES) if self.balanced else (HEAD, *others)


def log_prior(counts: Tensor, rho: float = RHO, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return ``π(y) = log((n_y + ρ)/(n + ρK))``, ``(K,)``."""
    smoothed = counts.double() + rho
    return (smoothed / smoothed.sum()).log().to(dtype)


def own_classes(counts: Tensor, dtype: torch.dtype, *, balanced: bool) -> Tensors:
    """Return the state of a client that remembers its classes A_i, and for balanced softmax π_i."""
    own: Tensors = {"own": counts > 0}
    return own | {"prior": log_prior(counts, dtype=dtype)} if balanced else own


H = TypeVar("H", bound=SoftmaxOptions)


class PrivateHead(Base[H]):
    """Mixin before Method: clients train and answer by a head of their own, and may remember π_i for it."""

    def client_state(self, counts: Tensor) -> Tensors:
        """Remember the client's class frequencies for balanced softmax."""
        return own_classes(counts, self.task.dtype, balanced=True) if self.options.balanced else {}

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Cross-entropy, plain or balanced."""
        output = model(batch.x)
        return {"cross_entropy": cross_entropy(batch, output.logits, state)}, output

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Logits of the head."""
        return head_scores(model(batch.x).logits, state)

    def shifted(self, state: Tensors, counts: Tensor) -> Tensors:
        """Predict with the log-prior of new frequencies, over the classes A_i that were learned."""
        return {**state, "prior": log_prior(counts, dtype=state["prior"].dtype)} if "prior" in state else state


def over(scores: Tensor, classes: Tensor) -> Tensor:
    """Return scores in which the classes outside a set have no chance."""
    return scores.masked_fill(~classes, torch.finfo(scores.dtype).min)


def cross_entropy(batch: Batch, logits: Tensor, state: Tensors) -> Tensor:
    """Return the mean cross-entropy of ``f(x)``, or of ``f(x) + π_i`` over A_i: absent classes are left out."""
    return batch.cross_entropy(over(logits + state["prior"], state["own"]) if "prior" in state else logits)


def head_scores(logits: Tensor, state: Tensors) -> Tensors:
    """Return the scores of a head: ``f(x)``, or those of A_i given the client's frequencies and without.

    A client without training samples may give any answer.

    Returns:
        ``(B, K)`` scores of the rule ``head``, and with π_i of ``all_classes``.
    """
    if "prior" not in state:
        return {"head": logits}
    own = state["own"] | ~state["own"].any()
    return {"head": over(logits + state["prior"], own), "all_classes": over(logits, own)}
