"""FedAvg: clients of one architecture average their weights.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor
from torch.func import functional_call

from protofed.methods import register
from protofed.methods.contract import Batch, Local, Method, Tensors, Traits
from protofed.methods.parts.averaged import AveragedWeights, AveragingOptions
from protofed.methods.parts.weights import copy_tensors, load_weights, sharing_notes
from protofed.methods.traits import GLOBAL_MODEL, HEAD, Protection
from protofed.wire.schema import Payload

if TYPE_CHECKING:
    from protofed.models import Output, SplitModel


@dataclass(frozen=True)
class FedAvgOptions(AveragingOptions):
    """Hyperparameters."""


W = TypeVar("W", bound=FedAvgOptions)


@register
class FedAvg(AveragedWeights[W], Method[W]):
    """FederatedAveraging (Algorithm 1): E epochs of cross-entropy from ``w^t``, then the mean of the ``w_i``.

    A client keeps its own model, as its last training left it, beside the global model that it received. Both are
    scored: rules ``head`` and ``global_model``. Server state: the weights that :meth:`shares` selects, by their
    names in the model.
    """

    name = "fedavg"
    summary = "weights averaged over clients of one architecture"
    reference = "McMahan et al., AISTATS 2017, arXiv 1602.05629"
    Options = FedAvgOptions

    @classmethod
    def traits(cls, options: W) -> Traits:
        """Every upload holds ``n_i``, and the server takes a mean."""
        return Traits(
            exchanges="all weights",
            up="|w|",
            down="|w|",
            class_sets="one K-way head",
            rules=(GLOBAL_MODEL, HEAD),
            same_architecture=True,
            counts=True,
            protection=Protection(dp_obstacle=""),
        )

    def notes(self) -> tuple[str, ...]:
        """Describe the shared share of the model, and the place of BatchNorm's running statistics."""
        return sharing_notes(self.first_model(), self.shares, self.options.share_buffers)

    # The client: ClientUpdate(i, w^t).

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Keep ``w^t`` beside the client's own model; before there is any, its own weights."""
        if message is not None:
            return dict(message)
        return copy_tensors(self.take_shared(local.model))

    def global_weights(self, received: Tensors) -> Tensors:
        """Return ``w^t`` from the received tensors."""
        return {n: received[n] for n in self.initial}

    def begin(self, local: Local) -> None:
        """Start from ``w^t``."""
        load_weights(local.model, self.global_weights(local.received))

    def classify(self, model: Callable[[Tensor], Output], batch: Batch, received: Tensors) -> Tensor:
        """Return the logits ``(B, K)`` of a model."""
        return model(batch.x).logits

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Logits of either model."""
        global_model = partial(functional_call, model, self.global_weights(received))
        return {
            "global_model": self.classify(global_model, batch, received),
            "head": self.classify(model, batch, received),
        }
