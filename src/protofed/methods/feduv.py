"""FedUV: FedAvg whose clients keep their outputs varied and their features spread.

Son et al., "FedUV: Uniformity and Variance for Heterogeneous Federated Learning", CVPR 2024. The formulas are from
the authors' code: how the paper writes σ and the uniformity is not confirmed. The two weights are called by what
they do, because the papers and the code swap their Greek letters. The authors' models end in a projection of two
layers before the head; here that is a matter of the architecture.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from protofed.methods import register
from protofed.methods.contract import Batch, SplitModel, Tensors, Terms
from protofed.methods.fedavg import FedAvg, FedAvgOptions
from protofed.options import remote

LEAST_VARIANCE = 1e-12  #: Variance below which the standard deviation has no useful gradient


@dataclass(frozen=True)
class FedUVOptions(FedAvgOptions):
    """Hyperparameters."""

    variance: float = remote(2.5, "weight λ_v of the hinge on the variance of each class's probability", least=0)
    uniformity: float = remote(0.5, "weight λ_u of the uniformity of the features", least=0)


@register
class FedUV(FedAvg[FedUVOptions]):
    """``CE + λ_v·L_var + λ_u·L_unif``; with both weights 0 it is FedAvg."""

    name = "feduv"
    summary = "FedAvg with varied predictions and spread features at every client"
    reference = "Son et al., CVPR 2024, arXiv 2402.18372"
    Options = FedUVOptions

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Cross-entropy and the two regularisers, which are 0 for a batch of one sample."""
        output = model(batch.x)
        return {
            "cross_entropy": batch.cross_entropy(output.logits),
            "variance": self.options.variance * variance_hinge(output.logits.softmax(-1), batch.weight),
            "uniformity": self.options.uniformity * uniformity(output.features, batch.weight),
        }, output


def variance_hinge(p: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return ``L_var = (1/K)·Σ_k max(0, γ − std_b(p_k))`` with ``γ = 1/√K``, 0 for fewer than two samples.

    Args:
        p: ``(B, K)`` probabilities; their standard deviation over the batch is the unbiased one.
        weight: ``(B,)``, 0 for padding; None keeps all.
    """
    w = torch.ones_like(p[:, 0]) if weight is None else weight.to(p.dtype)
    n = w.sum()
    mean = (w.unsqueeze(-1) * p).sum(0) / n.clamp(min=1)
    variance = (w.unsqueeze(-1) * (p - mean).square()).sum(0) / (n - 1).clamp(min=1)
    hinge = (p.shape[1] ** -0.5 - variance.clamp(min=LEAST_VARIANCE).sqrt()).clamp(min=0).mean()
    return torch.where(n > 1, hinge, 0.0)


def uniformity(z: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return ``L_unif = mean_{a<b} exp(−‖z_a − z_b‖²/σ)``, σ the median of the batch's squared distances above 0.

    The gradient flows through σ, as in the authors' code. The median of an even number of distances is the lower
    one. The result is 0 if all features are the same.

    Args:
        weight: ``(B,)``, 0 for padding; None keeps all.
    """
    if len(z) < 2:
        return z.new_zeros(())
    a, b = torch.triu_indices(len(z), len(z), 1, device=z.device)
    real = torch.ones(len(a), dtype=torch.bool, device=z.device) if weight is None else weight[a] * weight[b] > 0
    squared = (z[a] - z[b]).square().sum(-1)
    apart = real & (squared > 0)
    number = apart.sum()
    ordered = squared.masked_fill(~apart, torch.inf).sort().values
    median = ordered.gather(0, ((number - 1).clamp(min=0) // 2).unsqueeze(0)).squeeze(0)
    sigma = torch.where(number > 0, median, 1.0)
    mean = ((-squared / sigma).exp() * real).sum() / real.sum().clamp(min=1)
    return torch.where(number > 0, mean, 0.0)
