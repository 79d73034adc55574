"""MOON: FedAvg whose features are drawn to the global model's, and away from those of the client's last model.

Li, He and Song, "Model-Contrastive Federated Learning", CVPR 2021. The paper contrasts the outputs of a projection
head that it adds to the network; here they are the features of the clients' own models. A client that has never
trained has no last model, and minimises cross-entropy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from protofed.methods import register
from protofed.methods.contract import Batch, Local, SplitModel, Tensors, Terms
from protofed.methods.fedavg import FedAvg, FedAvgOptions
from protofed.options import remote
from protofed.wire.schema import Payload

LAST = "last."  #: Prefix of the weights of the client's last model


@dataclass(frozen=True)
class MoonOptions(FedAvgOptions):
    """Hyperparameters; the authors search μ in 0.1, 1, 5 and 10."""

    mu: float = remote(1.0, "weight μ of the model-contrastive loss; has to be tuned", least=0)
    temperature: float = remote(0.5, "temperature τ of its cosines", above=0)


@register
class Moon(FedAvg[MoonOptions]):
    """``CE + μ·ℓ_con`` with features z of the model, z_g of ``w^t`` and z_l of the client's last ``w_i`` (Eq. 3).

    ::

        ℓ_con = −log( e^{cos(z, z_g)/τ} / (e^{cos(z, z_g)/τ} + e^{cos(z, z_l)/τ}) )

    With μ = 0 it is FedAvg. Client state: ``trainings`` that it has begun, ``()`` int64.
    """

    name = "moon"
    summary = "FedAvg with features drawn to the global model's and away from the client's last ones"
    reference = "Li et al., CVPR 2021, arXiv 2103.16257"
    Options = MoonOptions

    def client_state(self, counts: Tensor) -> Tensors:
        """Begin without a training."""
        return {"trainings": torch.zeros((), dtype=torch.int64)}

    def begin(self, local: Local) -> None:
        """Start from ``w^t``."""
        super().begin(local)
        local.state["trainings"] = local.state["trainings"] + 1

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Keep ``w^t``, and the client's own model as its last training left it."""
        received = super().receive(local, message)
        return received | {f"{LAST}{n}": w.detach().clone() for n, w in self.take_shared(local.model).items()}

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Cross-entropy and ℓ_con; the other two models only evaluate."""
        output = model(batch.x)
        last = {n: received[f"{LAST}{n}"] for n in self.initial}
        near, far = (
            F.cosine_similarity(output.features, features_of(model, weights, batch.x), dim=-1)
            for weights in (self.global_weights(received), last)
        )
        contrast = F.softplus((far - near) / self.options.temperature)
        weight = self.options.mu * (state["trainings"] > 1).to(contrast.dtype)
        return {
            "cross_entropy": batch.cross_entropy(output.logits),
            "contrast": weight * batch.mean(contrast),
        }, output


def features_of(model: SplitModel, weights: Tensors, x: Tensor) -> Tensor:
    """Return the features of other weights, ``(B, d)``, without gradient, dropout or statistics of the batch."""
    training = model.training
    model.eval()
    try:
        features: Tensor = functional_call(model, weights, x).features.detach()
    finally:
        model.train(training)
    return features
