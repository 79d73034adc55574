"""LocalLDA: linear discriminant analysis of the client's own samples. The control of FedLDA: nothing is sent."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from protofed.methods import register
from protofed.methods.contract import Tensors
from protofed.methods.fedlda import SHRINKAGE, Shrinkage, discriminant
from protofed.methods.parts.moments import ClosedForm, Linear, Sums
from protofed.options import Options, remote


@dataclass(frozen=True)
class LocalLDAOptions(Options):
    """Hyperparameters."""

    shrinkage: Shrinkage = remote("oas", SHRINKAGE + "oas | NUMBER", least=0, most=1)


@register
class LocalLDA(ClosedForm[LocalLDAOptions]):
    """The client's own class means, covariance and shrinkage, with its own prior over its own classes."""

    name = "local_lda"
    summary = "no communication: linear discriminant analysis of the client's own fixed features"
    Options = LocalLDAOptions
    second = True
    alone = True

    def classifier(self, total: Sums) -> Linear:
        """Return the discriminant of the client's own samples."""
        return discriminant(total, self.options.shrinkage, self.task.dtype)

    def likely(self, scores: Tensor, state: Tensors) -> Tensor:
        """Add the log-prior."""
        return scores + state["prior"]
