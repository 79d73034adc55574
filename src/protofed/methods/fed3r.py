"""Fed3R: ridge regression on fixed features, in one round.

Fanì et al., "Accelerating Heterogeneous Federated Learning with Closed-form Classifiers", ICML 2024. AFL (He et
al., "AFL: A Single-Round Analytic Approach for Federated Learning with Pre-trained Models", CVPR 2025) is the same
for λ → 0, without the normalisation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import Literal

from protofed.methods import register
from protofed.methods.parts.moments import Sums
from protofed.methods.parts.ridged import Gram, Ridged, RidgeOptions
from protofed.options import remote


@dataclass(frozen=True)
class Fed3ROptions(RidgeOptions):
    """Hyperparameters."""

    lambda_: float | Literal["auto"] = remote(
        "auto",
        "λ of the ridge (at least what rounding needs), or auto: that of six under which a client's samples, each "
        "left out in turn, are most likely (for all classes: 0.01)",
        least=0,
    )
    normalise: bool = remote(True, "columns of W of unit length, so that frequent classes are not preferred")
    constant: bool = remote(False, "one more feature, which is 1 (the authors' code)")

    @property
    def ridge(self) -> float | Literal["auto"]:
        """λ."""
        return self.lambda_


@register
class Fed3R(Ridged[Fed3ROptions]):
    """``W = (A + λI)⁻¹ b`` with ``A = Σ φφᵀ`` and ``b = Σ φ·onehot(y)ᵀ`` over the samples of all clients."""

    name = "fed3r"
    summary = "ridge regression on fixed features of all clients: one round, no training"
    reference = "Fanì et al., ICML 2024, arXiv 2406.01116"
    Options = Fed3ROptions
    second = True
    usual, ridges = 0.01, (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
    taken = True

    @property
    def constant(self) -> bool:
        """As the options say."""
        return self.options.constant

    @property
    def normalised(self) -> bool:
        """As the options say."""
        return self.options.normalise

    def scale(self, gram: Gram) -> float:
        """Choose in units of the features' sum of squares, of which λ itself knows nothing."""
        return float(gram.matrix.diagonal().mean())

    def gather(self, parts: Iterable[Sums]) -> Gram:
        """Add up."""
        none = Sums.none(self.task.num_classes, self.task.feature_dim, second=True)
        total = reduce(Sums.plus, parts, none)
        return Gram(total, total.moment, 1.0)
