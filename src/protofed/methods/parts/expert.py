"""A client's own network beside a closed form: it is trained alone, and both answer together.

``a·log p_own(y|x) + b·log p_closed(y|x)`` over the client's classes, with ``a`` and ``b`` that suit its validation
samples (see :func:`protofed.prototypes.fusion.learned`), or equal ones. Client state: ``trains``, whether
there is one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from protofed.methods.contract import Batch, Phase, Tensors, Terms, Update
from protofed.methods.parts.prior import cross_entropy, over
from protofed.prototypes.fusion import learned

if TYPE_CHECKING:
    from protofed.models import SplitModel

Expert = Literal["none", "plain", "balanced", "auto"]
LEAST = 300
"""Training samples from which ``auto`` trains a network: see docs/methods.md."""
CAUTION = 1.0
"""Weight of the penalty on ``(a - ½)² + (b - ½)²``, as beacon has it."""


def trains(kind: Expert, counts: Tensor) -> Tensor:
    """Return whether a client with ``(K,)`` samples per class trains a network of its own, as a bool scalar."""
    least = {"none": float("inf"), "auto": LEAST}.get(kind, 1)
    return counts.sum().cpu() >= least


def phase(kind: Expert) -> tuple[Phase, ...]:
    """Return the training of a round, which is that of ``local``."""
    loss = _balanced if kind == "balanced" else _plain
    return (Phase((Update(loss),), only=lambda local: bool(local.state["trains"]), stays=True),)


def _plain(model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
    return _balanced(model, batch, received, {})


def _balanced(model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
    output = model(batch.x)
    return {"cross_entropy": cross_entropy(batch, output.logits, state)}, output


def likely(kind: Expert, logits: Tensor, state: Tensors) -> Tensor:
    """Return ``log p_own(y|x)`` over the client's classes, ``(B, K)``.

    Args:
        logits: ``(B, K)`` outputs of the network.
    """
    known = state["own"] | ~state["own"].any()
    return over(logits + state["prior"] if kind == "balanced" else logits, known).log_softmax(-1)


def weights(state: Tensors, answers: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """Return ``a`` and ``b``, ``(2,)``.

    Args:
        answers: For batches of validation samples ``log p_own``, ``log p_closed`` and labels.
    """
    prior = state["prior"]
    if not bool(state["trains"]):
        return prior.new_tensor([0.0, 1.0])
    return learned(answers, state["own"], torch.zeros_like(prior), CAUTION)
