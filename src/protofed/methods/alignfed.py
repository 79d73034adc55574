"""AlignFed: the head is averaged; extractors stay on the clients, and turn features to the same fixed points.

Zhu et al., "Aligning before Aggregating: Enabling Communication Efficient Cross-Domain Federated Learning via
Consistent Feature Extraction", IEEE TMC 2024. The paper's text was not at hand: target points that are spread
evenly on the hypersphere, features pushed towards the point of their class and away from all others, and a light
head that is averaged. The contrast, its temperature and its weight, which falls, are those of a public
implementation (by FedTSP's authors). Its points minimise Σ_a log Σ_b e^{z_a·z_b/½} by gradient steps; that is the
simplex ETF where K ≤ d + 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.methods import register
from protofed.methods.contract import Batch, Local, Phase, Round, SplitModel, Tensors, Terms, Traits, Update
from protofed.methods.lg_fedavg import LGFedAvg, LGFedAvgOptions
from protofed.options import remote
from protofed.prototypes.etf import spread_directions
from protofed.wire.schema import Payload


@dataclass(frozen=True)
class AlignFedOptions(LGFedAvgOptions):
    """Hyperparameters."""

    lambda_: float = remote(20.0, "weight λ of the contrast with the target points in the first round", above=0)
    last: float = remote(2.0, "weight that λ falls to by the end, by the same factor each round", above=0)
    temperature: float = remote(1.0, "temperature τ of its cosines", above=0)
    contrast: Literal["samples", "points"] = remote(
        "samples",
        "a point's softmax over the samples of a batch, as a mean over the points, or a sample's over the points",
    )


@register
class AlignFed(LGFedAvg):
    """LG-FedAvg with ``CE + λ_t·contrast``, ``λ_t = λ·(λ_T/λ)^{(t−1)/T}`` in round t of T.

    ::

        samples: −(1/K)·Σ_c mean_{y_b = c} log( e^{cos(f_b, z_c)/τ} / Σ_b' e^{cos(f_b', z_c)/τ} )
        points:  CE(cos(f_b, z)/τ, y_b)

    The points ``z`` are those of ``fixed_etf``: a simplex ETF that all derive from the seed (spread, where K > d).
    """

    name = "alignfed"
    summary = "the head is averaged over extractors that turn features to the same fixed points"
    reference = "Zhu et al., IEEE TMC 2024"
    Options = AlignFedOptions
    options: AlignFedOptions

    @classmethod
    def traits(cls, options: LGFedAvgOptions) -> Traits:
        """λ falls until the last round."""
        return replace(super().traits(options), rounds="planned")

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Load the shared part, and derive the points ``z``, ``(K, d)`` unit rows."""
        task, d = self.task, local.model.feature_dim
        points = spread_directions(task.num_classes, d, task.seed, dtype=task.dtype)
        return super().receive(local, message) | {"points": points}

    def round(self, number: int) -> Round:
        """λ falls."""
        options = self.options
        share = (options.last / options.lambda_) ** ((number - 1) / max(1, self.task.rounds))
        return Round((Phase((Update(partial(self.aligned, options.lambda_ * share)),)),))

    def aligned(self, weight: float, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Cross-entropy of the head, and the contrast with the points."""
        output = model(batch.x)
        logits = F.normalize(output.features, dim=-1) @ received["points"].mT / self.options.temperature
        over_points = self.options.contrast == "points"
        contrast = batch.cross_entropy(logits) if over_points else over_samples(logits, batch)
        return {"cross_entropy": batch.cross_entropy(output.logits), "contrast": weight * contrast}, output


def over_samples(logits: Tensor, batch: Batch) -> Tensor:
    """Return ``−(1/K)·Σ_c mean_{y_b = c} (s_bc − log Σ_b' e^{s_b'c})`` of ``(B, K)`` logits s.

    A class without samples adds 0.
    """
    weight = torch.ones_like(logits[:, 0]) if batch.weight is None else batch.weight.to(logits.dtype)
    real = (weight > 0).unsqueeze(-1)
    shares = logits - logits.masked_fill(~real, -torch.inf).logsumexp(0)
    own = (batch.y.unsqueeze(-1) == torch.arange(logits.shape[1], device=logits.device)) * weight.unsqueeze(-1)
    return -((own * shares).sum(0) / own.sum(0).clamp(min=1)).mean()
