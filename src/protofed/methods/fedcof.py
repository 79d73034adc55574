"""FedCOF: covariances for free, from the class means of the clients alone, in one round.

Goswami et al., "Covariances for Free: Exploiting Mean Distributions for Training-free Federated Learning", NeurIPS
2025. The mean of n samples has a covariance n times smaller than a sample, so the means of several clients tell it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from protofed.methods import register
from protofed.methods.contract import Traits
from protofed.methods.parts.moments import ClosedForm, Linear, Sums, solve
from protofed.options import Options, remote


@dataclass(frozen=True)
class FedCOFOptions(Options):
    """Hyperparameters."""

    gamma: float = remote(1.0, "γ of Σ̂_k + γI, in units of the features' mean variance within classes", least=0)


@register
class FedCOF(ClosedForm[FedCOFOptions]):
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

    @classmethod
    def traits(cls, options: FedCOFOptions) -> Traits:
        """Noise on the means of single clients exceeds what they tell of the covariance."""
        more = "its server compares the means of single clients, which noise hides (fedlda takes the sums)"
        return replace(super().traits(options), sums_only=False, beyond_means=more)

    def combined(self, parts: Iterable[Sums]) -> tuple[Sums, Linear]:
        """Estimate the covariance from the single clients' means, and solve for W."""
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
        return total, self.solved(total, rows.mT @ rows, float(beyond[holders > 1].sum()))

    def classifier(self, total: Sums) -> Linear:
        """Without means of several clients nothing is known of the covariance."""
        return self.solved(total, total.sums.new_zeros(self.task.feature_dim, self.task.feature_dim))

    def solved(self, total: Sums, scatter: torch.Tensor, known: float = 0.0) -> Linear:
        """Return the classifier.

        Args:
            scatter: ``Σ_k (N_k − 1)·Σ̂_k``, ``(d, d)``, over the classes that several clients hold; zero without
                any, where the variance between classes stands in for that within.
            known: ``Σ_k (N_k − 1)`` over these classes.
        """
        N = total.counts.sum().clamp(min=1)
        mean = total.sums.sum(0) / N
        between = (total.counts * (total.means.rows - mean).square().mean(-1)).sum() / N
        # γ·Σ_k (N_k − 1) variances, of which the diagonal of the scatter holds those of the known classes.
        variance = scatter.diagonal().mean() / max(known, 1.0) or between
        variances = float(variance * (total.counts - 1).clamp(min=0).sum())
        gram = scatter + N * mean.outer(mean)
        square = float(gram.diagonal().mean())
        W = solve(gram, total.sums.mT, square, self.task.dtype, self.options.gamma * variances).mT
        W = F.normalize(W, dim=-1, eps=1e-300)
        return Linear(W, W.new_zeros(len(W)), total.means.present)
