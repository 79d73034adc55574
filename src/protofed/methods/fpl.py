"""FPL: FedAvg, and features that are contrasted with clusters of clients' prototypes, for domains that differ.

Huang, Ye, Shi, Li and Du, "Rethinking Federated Learning with Domain Shift: A Prototype View", CVPR 2023.

The formulas and the temperature are those of the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from protofed.methods import register
from protofed.methods.contract import Batch, SplitModel, Tensors, Terms, Traits
from protofed.methods.fedavg import FedAvg, FedAvgOptions
from protofed.methods.parts.beside import ClustersBeside, centres, contrast
from protofed.methods.traits import Protection
from protofed.options import remote
from protofed.prototypes.inference import pull


@dataclass(frozen=True)
class FPLOptions(FedAvgOptions):
    """Hyperparameters."""

    temperature: float = remote(0.02, "temperature τ of the contrast", above=0)
    clusters: int = remote(16, "prototypes of one class, at most: clusters of most clients come first", least=1)
    prototypes: Literal["during", "after"] = remote(
        "during", "class means from the steps of the last local epoch, or from a pass after training"
    )


@register
class FPL(ClustersBeside, FedAvg[FPLOptions]):
    """``CE + contrast + MSE(f(x), u_y)``: clusters ``P_c`` of a class keep domains apart, their mean ``u_c`` joins.

    ::

        contrast = −log( Σ_{p ∈ P_y} e^{cos(f(x), p)/τ} / Σ_p e^{cos(f(x), p)/τ} )

    The server clusters the class means of a round's clients by FINCH. Server state: the weights, and ``clusters``
    ``(K, c, d)`` with ``held`` ``(K, c)``, c being the most clusters of a class.
    """

    name = "fpl"
    summary = "FedAvg with features contrasted with clusters of clients' class means"
    reference = "Huang et al., CVPR 2023"
    Options = FPLOptions

    @classmethod
    def traits(cls, options: FPLOptions) -> Traits:
        """Clusters need every single mean."""
        return replace(
            super().traits(options),
            up="|w| + K_i·d",
            down="|w| + c·d",
            aggregation="single",
            protection=Protection(),
        )

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Cross-entropy, the contrast with all clusters, and the pull to the mean of the class's clusters."""
        output = model(batch.x)
        rows, present = received["clusters"], received["held"]
        apart = contrast(output.features, batch, rows, present, self.options.temperature)
        return {
            "cross_entropy": batch.cross_entropy(output.logits),
            "contrast": batch.mean(apart),
            "prototype": batch.mean(pull(output.features, batch.y, centres(received))),
        }, output
