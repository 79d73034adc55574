"""AlignFed: the head is averaged; extractors stay on the clients, and turn features to the same fixed points.

Zhu et al., "Aligning before Aggregating: Enabling Communication Efficient Cross-Domain Federated Learning via
Consistent Feature Extraction", IEEE TMC 2024. Only the abstract was at hand: target points that are spread evenly
on the hypersphere, features pushed towards the point of their class and away from all others, and a light head that
is averaged. The push is the usual contrast of normalised features; its weight and temperature are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.nn.functional as F

from protofed.methods import register
from protofed.methods.contract import Batch, Local, Tensors, Terms
from protofed.methods.lg_fedavg import LGFedAvg, LGFedAvgOptions
from protofed.options import remote
from protofed.prototypes.etf import spread_directions
from protofed.wire.schema import Payload

if TYPE_CHECKING:
    from protofed.models import SplitModel


@dataclass(frozen=True)
class AlignFedOptions(LGFedAvgOptions):
    """Hyperparameters."""

    lambda_: float = remote(1.0, "weight λ of the contrast with the target points", least=0)
    temperature: float = remote(0.1, "temperature τ of its cosines", above=0)


@register
class AlignFed(LGFedAvg):
    """LG-FedAvg with ``CE + λ·CE(cos(f(x), z_c)/τ, y)``.

    The points ``z`` are those of ``fixed_etf``: a simplex ETF that all derive from the seed (spread, where K > d).
    """

    name = "alignfed"
    summary = "the head is averaged over extractors that turn features to the same fixed points"
    reference = "Zhu et al., IEEE TMC 2024"
    Options = AlignFedOptions
    options: AlignFedOptions

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Load the shared part, and derive the points ``z``, ``(K, d)`` unit rows."""
        task, d = self.task, local.model.feature_dim
        points = spread_directions(task.num_classes, d, task.seed, dtype=task.dtype)
        return super().receive(local, message) | {"points": points}

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Cross-entropy of the head, and of the cosines with the points."""
        output = model(batch.x)
        cosines = F.normalize(output.features, dim=-1) @ received["points"].mT
        contrast = batch.cross_entropy(cosines / self.options.temperature)
        return {
            "cross_entropy": batch.cross_entropy(output.logits),
            "contrast": self.options.lambda_ * contrast,
        }, output
