"""FedPLVM: FedAvg, and several prototypes per class at clients and at the server, for domains that differ.

Wang, Bian, Zhang, Chen and Xu, "Taming Cross-Domain Representation Variance in Federated Prototype Learning with
Heterogeneous Data Domains", NeurIPS 2024.

Formulas and weights are those of the authors' code. It takes roots of cosines, which are real with features that
are not negative; here cosines below 10⁻⁴ count as that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from protofed.methods import register
from protofed.methods.contract import Batch, Local, SplitModel, Tensors, Terms, Traits
from protofed.methods.fedavg import FedAvg, FedAvgOptions
from protofed.methods.parts.beside import ClustersBeside, centres, cluster_means, contrast
from protofed.methods.traits import Protection
from protofed.options import remote
from protofed.wire.schema import Payload


@dataclass(frozen=True)
class FedPLVMOptions(FedAvgOptions):
    """Hyperparameters."""

    lambda_: float = remote(100.0, "weight λ of contrast and correction", least=0)
    temperature: float = remote(0.07, "temperature τ of the contrast", above=0)
    power: float = remote(0.25, "power α of its cosines: below 1, samples far away count for more", above=0, most=1)
    clusters: int = remote(16, "prototypes of one class, at most: clusters of most members come first", least=1)


@register
class FedPLVM(ClustersBeside, FedAvg[FedPLVMOptions]):
    """``CE + λ·(contrast + 2·(1 − cos(f(x), u_y))²)``, ``u_y`` the mean of the clusters ``P_y`` of a class.

    ::

        contrast = −log( Σ_{p ∈ P_y} e^{cos(f(x), p)^α/τ} / Σ_p e^{cos(f(x), p)^α/τ} )

    After training a client clusters the features of each of its classes by FINCH and sends the clusters' means; the
    server clusters all of these. Server state: as FPL's.
    """

    name = "fedplvm"
    summary = "FedAvg with clusters of features per class, clustered again by the server"
    reference = "Wang et al., NeurIPS 2024, arXiv 2403.09048"
    Options = FedPLVMOptions

    @classmethod
    def traits(cls, options: FedPLVMOptions) -> Traits:
        """Clusters need every single row."""
        return replace(
            super().traits(options),
            up="|w| + c_i·d",
            down="|w| + c·d",
            aggregation="single",
            protection=Protection(),
        )

    @property
    def statistics(self) -> None:
        """Clusters are no sums over samples."""
        return

    @property
    def sent(self) -> int:
        """A client has as many clusters as the server."""
        return self.most

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Cross-entropy, the contrast with all clusters, and the correction towards the class's mean cluster."""
        o, output = self.options, model(batch.x)
        rows, present, mean = received["clusters"], received["held"], centres(received)
        apart = contrast(output.features, batch, rows, present, o.temperature, o.power)
        away = (1 - F.cosine_similarity(output.features, mean.rows[batch.y], dim=-1)).square()
        return {
            "cross_entropy": batch.cross_entropy(output.logits),
            "contrast": o.lambda_ * batch.mean(apart),
            "correction": 2 * o.lambda_ * batch.mean(torch.where(mean.present[batch.y], away, 0.0)),
        }, output

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``w_i``, ``n_i``, and the means of the clusters of each class."""
        features, labels = local.features()
        own = {c: cluster_means(features[labels == c], self.most) for c in labels.unique().tolist()}
        classes = [torch.full((len(rows),), c) for c, rows in own.items()]
        return {
            **FedAvg.upload(self, local, statistics),
            "classes": torch.cat(classes).to(labels.device),
            "prototypes": torch.cat(list(own.values())),
        }
