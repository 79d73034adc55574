"""Local: every client trains alone. The lower bound that any exchange has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from torch import Tensor

from protofed.methods import register
from protofed.methods.contract import Batch, Method, Tensors, Traits
from protofed.methods.parts.prior import PrivateHead, SoftmaxOptions, head_scores, over, own_classes
from protofed.options import remote

if TYPE_CHECKING:
    from protofed.models import SplitModel


@dataclass(frozen=True)
class LocalOptions(SoftmaxOptions):
    """Hyperparameters."""

    predict_over: Literal["all", "own"] = remote("all", "classes the head may answer: all K, or the client's own")


@register
class LocalTraining(PrivateHead[LocalOptions], Method[LocalOptions]):
    """Cross-entropy on the client's own data; nothing up, nothing down."""

    name = "local"
    summary = "no communication: every client trains alone"
    Options = LocalOptions

    @classmethod
    def traits(cls, options: LocalOptions) -> Traits:
        """The head; if it is free of class bias, for the client's class frequencies and for equal ones."""
        return Traits(rules=options.head_rules())

    def client_state(self, counts: Tensor) -> Tensors:
        """Remember the classes that the client holds, and if need be how often."""
        return own_classes(counts, self.task.dtype, balanced=self.options.balanced)

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Logits of the head, over all classes or the client's own."""
        logits = model(batch.x).logits
        if self.options.predict_over == "own":
            logits = over(logits, state["own"] | ~state["own"].any())
        return head_scores(logits, state)
