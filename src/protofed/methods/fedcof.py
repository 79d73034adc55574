"""FedCOF: covariances for free, from the class means of the clients alone, in one round.

Goswami et al., "Covariances for Free: Exploiting Mean Distributions for Training-free Federated Learning", NeurIPS
2025. The mean of n samples has a covariance n times smaller than a sample, so the means of several clients tell it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch

from protofed.methods import register
from protofed.methods.contract import Traits
from protofed.methods.parts.moments import Sums
from protofed.methods.parts.ridged import Gram, Ridged, RidgeOptions
from protofed.methods.traits import Protection
from protofed.options import remote


@dataclass(frozen=True)
class FedCOFOptions(RidgeOptions):
    """Hyperparameters."""

    gamma: float | Literal["auto"] = remote(
        "auto",
        "γ of Σ̂_k + γI, in units of the features' mean variance within classes, or auto: that of five under which "
        "a client's samples, each left out of the means in turn, are most likely (for all classes: 1)",
        least=0,
    )

    @property
    def ridge(self) -> float | Literal["auto"]:
        """γ."""
        return self.gamma


@register
class FedCOF(Ridged[FedCOFOptions]):
    """``W = (Σ_k (N_k − 1)·(Σ̂_k + γI) + N·μμᵀ)⁻¹ b`` with columns of unit length.

    That is ridge regression without what lies between classes; μ is the mean of all samples. ``Σ̂_k = 1/(C_k −
    1)·Σ_i n_ik (μ_ik − μ_k)(μ_ik − μ_k)ᵀ`` over the ``C_k`` clients that hold class k is unbiased if clients draw
    their samples of a class alike; a class that one client holds says nothing. The authors' γ is a number of its
    own, which suits features of one scale.
    """

    name = "fedcof"
    summary = "class means of fixed features, and the covariance that they imply: one round, no training"
    reference = "Goswami et al., NeurIPS 2025, arXiv 2412.14326"
    Options = FedCOFOptions
    released = False
    usual, ridges = 1.0, (0.01, 0.03, 0.1, 0.3)
    taken = False

    @classmethod
    def traits(cls, options: FedCOFOptions) -> Traits:
        """Noise on the means of single clients exceeds what they tell of the covariance."""
        more = "its server compares the means of single clients, which noise hides (fedlda takes the sums)"
        return replace(super().traits(options), aggregation="single", protection=Protection(dp_obstacle=more))

    def gather(self, parts: Iterable[Sums]) -> Gram:
        """Estimate the covariance from the single clients' means.

        Without classes that several clients hold, nothing is known of it, and the variance between classes stands
        in for that within.
        """
        clients = list(parts)
        counts, sums = (torch.stack([part[n] for part in clients]) for n in (0, 1))
        total = Sums(counts.sum(0), sums.sum(0), clients[0].moment)
        holders = (counts > 0).sum(0)
        apart = torch.where(
            (counts > 0).unsqueeze(-1), sums / counts.clamp(min=1).unsqueeze(-1) - total.means.rows, 0
        )
        beyond = (total.counts - 1).clamp(min=0)
        factors = (counts * (beyond / (holders - 1).clamp(min=1))).sqrt()
        rows = (apart * factors.unsqueeze(-1)).flatten(0, 1)
        scatter, known = rows.mT @ rows, float(beyond[holders > 1].sum())
        N = total.counts.sum().clamp(min=1)
        mean = total.sums.sum(0) / N
        between = (total.counts * (total.means.rows - mean).square().mean(-1)).sum() / N
        # γ·Σ_k (N_k − 1) variances, of which the diagonal of the scatter holds those of the known classes.
        variance = scatter.diagonal().mean() / max(known, 1.0) or between
        return Gram(total, scatter + N * mean.outer(mean), float(variance * beyond.sum()))
