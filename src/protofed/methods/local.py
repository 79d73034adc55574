"""Local: every client trains alone. The lower bound that any exchange has to beat."""

from __future__ import annotations

from torch import Tensor

from protofed.methods import register
from protofed.methods.contract import Method, Tensors, Traits
from protofed.methods.parts.prior import PrivateHead, SoftmaxOptions, own_classes


@register
class LocalTraining(PrivateHead[SoftmaxOptions], Method[SoftmaxOptions]):
    """Cross-entropy on the client's own data; nothing up, nothing down."""

    name = "local"
    summary = "no communication: every client trains alone"
    Options = SoftmaxOptions

    @classmethod
    def traits(cls, options: SoftmaxOptions) -> Traits:
        """The head; if it is free of class bias, for the client's class frequencies and for equal ones."""
        return Traits(rules=options.head_rules())

    def client_state(self, counts: Tensor) -> Tensors:
        """Remember the classes that the client holds, and if need be how often."""
        return own_classes(counts, self.task.dtype, balanced=self.options.balanced)
