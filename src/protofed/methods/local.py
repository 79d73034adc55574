"""Local: every client trains alone. The lower bound that any exchange has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from protofed.methods import register
from protofed.methods.contract import Batch, Method, Tensors
from protofed.options import Options, option
from protofed.prototypes.inference import most_likely

if TYPE_CHECKING:
    from protofed.models import SplitModel


@dataclass(frozen=True)
class LocalOptions(Options):
    """Hyperparameters."""

    predict_over: Literal["all", "own"] = option("all", "classes the head may answer: all K, or the client's own")


@register
class LocalTraining(Method[LocalOptions]):
    """Cross-entropy on the client's own data; nothing up, nothing down."""

    name = "local"
    summary = "no communication: every client trains alone"
    Options = LocalOptions

    def client_state(self, counts: Tensor) -> Tensors:
        """Remember the classes that the client holds."""
        return {"own": counts > 0}

    def predict(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Argmax of the head, over all classes or the client's own."""
        logits = model(batch.x).logits
        if self.options.predict_over == "own":
            logits = logits.masked_fill(~state["own"] & state["own"].any(), torch.finfo(logits.dtype).min)
        return {"head": most_likely(logits)}
