"""FedProto: clients exchange class means of features instead of weights.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022. Equation numbers
are the paper's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from protofed.methods import register
from protofed.methods._prototypes import PrototypeMethod, PrototypeOptions
from protofed.methods.contract import Aggregate, Local, Tensors, Upload
from protofed.options import option
from protofed.wire.schema import Field, Payload, Schema, prototype_schema


@dataclass(frozen=True)
class FedProtoOptions(PrototypeOptions):
    """Hyperparameters; λ of Eq. 7 is 1 for MNIST and FEMNIST and 0.1 for CIFAR-10 in the paper."""

    aggregation: Literal["mean", "weighted", "paper"] = option(
        "mean",
        "over the clients that hold a class: plain mean (the authors' code), mean weighted by n_ij, "
        "or Eq. 6 to the letter (the weighted mean divided once more by the number of clients)",
    )


@register
class FedProto(PrototypeMethod):
    """Algorithm 1: LocalUpdate and prototype aggregation."""

    name = "fedproto"
    summary = "class means averaged over clients; models stay private"
    reference = "Tan et al., AAAI 2022, arXiv 2105.00243"
    Options = FedProtoOptions

    @classmethod
    def needs_counts(cls, options: FedProtoOptions) -> bool:
        """A weighted mean takes ``n_ij``."""
        return options.aggregation != "mean"

    @property
    def upload_schema(self) -> Schema:
        """Local prototypes; with their sample counts where the server weights by them."""
        if self.options.aggregation == "mean":
            return self.schema
        counts = Field(("k",), "count", parameter=False)
        return prototype_schema(self.task.num_classes, "d", self.schema.sizes, counts=counts)

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Eq. 3, and ``n_ij`` for a weighted mean."""
        payload = super().upload(local, statistics)
        if self.options.aggregation != "mean":
            payload["counts"] = statistics["counts"][payload["classes"]].long()
        return payload

    def update(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """Eq. 6: ``C_j`` from the ``c_ij`` of the clients ``i ∈ 𝒩_j``."""
        mean = self.mean_of(uploads)
        prototypes = mean.mean()
        if self.options.aggregation == "paper":
            divided = prototypes.rows / mean.reporters.clamp(min=1).unsqueeze(-1)
            prototypes = prototypes._replace(rows=divided)
        return Aggregate(self.merge(server, prototypes), {})
