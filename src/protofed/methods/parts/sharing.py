"""Base of methods that average a part of a model's weights, while the rest stays on the clients."""

from __future__ import annotations

from typing import TypeVar

from protofed.methods.contract import Method, Traits
from protofed.methods.fedavg import FedAvgOptions
from protofed.methods.parts.averaged import AveragedWeights
from protofed.methods.parts.weights import sharing_notes
from protofed.methods.traits import Protection

S = TypeVar("S", bound=FedAvgOptions)


class SharedPart(AveragedWeights[S], Method[S]):
    """Clients train by cross-entropy, send the part of the model that :meth:`shares` selects, and load its mean.

    Server state: the shared part, by the names of its weights in the model.
    """

    @classmethod
    def traits(cls, options: S) -> Traits:
        """Every upload holds ``n_i``, and the server takes a mean."""
        return Traits(exchanges="part of the weights", counts=True, protection=Protection(dp_obstacle=""))

    def shares(self, name: str) -> bool:
        """Return whether the weight called ``name`` belongs to the shared part."""
        raise NotImplementedError

    def notes(self) -> tuple[str, ...]:
        """Describe the shared share of the model, and the place of BatchNorm's running statistics."""
        return sharing_notes(self.first_model(), self.shares, self.options.share_buffers)
