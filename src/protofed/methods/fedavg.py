"""FedAvg: clients of one architecture average their weights.

McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data", AISTATS 2017.
"""

from __future__ import annotations

from protofed.methods import register
from protofed.methods._weights import GlobalModelMethod


@register
class FedAvg(GlobalModelMethod):
    """FederatedAveraging (Algorithm 1): E epochs of cross-entropy from ``w^t``, then the mean of the ``w_i``."""

    name = "fedavg"
    summary = "weights averaged over clients of one architecture"
    reference = "McMahan et al., AISTATS 2017, arXiv 1602.05629"
