"""FedProx: FedAvg whose clients are held back from drifting away from the global model.

Li et al., "Federated Optimization in Heterogeneous Networks", MLSys 2020. The paper's own pair of sampling clients
by size and averaging them uniformly (Algorithm 2) is known to us from a secondary source; the authors' code draws
clients uniformly and weights them by n_i, as here by default. For the former set ``weighting = uniform`` and
``participation.sampling = samples``. Clients with fewer local epochs than others (``epochs`` in their
``client.toml``) count like all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from protofed.methods import register
from protofed.methods.contract import Batch, SplitModel, Tensors, Terms
from protofed.methods.fedavg import FedAvg, FedAvgOptions
from protofed.options import remote


@dataclass(frozen=True)
class FedProxOptions(FedAvgOptions):
    """Hyperparameters; the authors search μ in 0.001 … 1 and name no default."""

    mu: float = remote(0.01, "weight μ of the proximal term; has to be tuned", least=0)


@register
class FedProx(FedAvg[FedProxOptions]):
    """``CE + (μ/2)·‖w − w^t‖²``; with μ = 0 it is FedAvg."""

    name = "fedprox"
    summary = "FedAvg with a proximal term that keeps clients near the global model"
    reference = "Li et al., MLSys 2020, arXiv 1812.06127"
    Options = FedProxOptions

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Eq. 2; the square is summed over all trainable weights, without buffers."""
        drift: Any = sum((w - received[n]).square().sum() for n, w in model.named_parameters())
        output = model(batch.x)
        return {
            "cross_entropy": batch.cross_entropy(output.logits),
            "proximal": self.options.mu / 2 * drift,
        }, output
