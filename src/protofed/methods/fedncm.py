"""FedNCM: the nearest class mean, by cosine, in one round.

Legate et al., "Guiding The Last Layer in Federated Learning with Pre-Trained Models", NeurIPS 2023.
"""

from __future__ import annotations

import torch.nn.functional as F

from protofed.methods import register
from protofed.methods.parts.moments import ClosedForm, Linear, Sums
from protofed.options import NoOptions


def nearest_by_cosine(total: Sums) -> Linear:
    """Return the classifier with the largest ``φ·μ_k/‖μ_k‖``."""
    means = total.means
    return Linear(F.normalize(means.rows, dim=-1, eps=1e-300), means.rows.new_zeros(len(means.rows)), means.present)


@register
class FedNCM(ClosedForm[NoOptions]):
    """Class means ``μ_k = Σ_i n_ik·μ_ik / Σ_i n_ik``, of unit length as the weights of a head."""

    name = "fedncm"
    summary = "class means of fixed features, the nearest by cosine: one round, no training"
    reference = "Legate et al., NeurIPS 2023, arXiv 2306.03937"
    Options = NoOptions

    def classifier(self, total: Sums) -> Linear:
        """Return the class means, of unit length."""
        return nearest_by_cosine(total)
