"""Fed3R: ridge regression on fixed features, in one round.

Fanì et al., "Accelerating Heterogeneous Federated Learning with Closed-form Classifiers", ICML 2024. AFL (He et
al., "AFL: A Single-Round Analytic Approach for Federated Learning with Pre-trained Models", CVPR 2025) is the same
for λ → 0, without the normalisation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F

from protofed.methods import register
from protofed.methods.parts.moments import ClosedForm, Linear, Sums, solve
from protofed.options import Options, remote


@dataclass(frozen=True)
class Fed3ROptions(Options):
    """Hyperparameters."""

    lambda_: float = remote(0.01, "λ of the ridge (at least what rounding needs)", least=0)
    normalise: bool = remote(True, "columns of W of unit length, so that frequent classes are not preferred")


@register
class Fed3R(ClosedForm[Fed3ROptions]):
    """``W = (A + λI)⁻¹ b`` with ``A = Σ φφᵀ`` and ``b = Σ φ·onehot(y)ᵀ`` over the samples of all clients."""

    name = "fed3r"
    summary = "ridge regression on fixed features of all clients: one round, no training"
    reference = "Fanì et al., ICML 2024, arXiv 2406.01116"
    Options = Fed3ROptions
    second = True

    def classifier(self, total: Sums) -> Linear:
        """Solve for W."""
        square = float(total.moment.diagonal().mean())
        W = solve(total.moment, total.sums.mT, square, self.task.dtype, self.options.lambda_).mT
        W = F.normalize(W, dim=-1, eps=1e-300) if self.options.normalise else W
        return Linear(W, W.new_zeros(len(W)), total.means.present)
