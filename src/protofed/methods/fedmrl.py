"""FedMRL: a small network that all share and a client's own look at a sample; nested heads read what both see.

Yi, Yu, Ren, Wang, Liu and Li, "Federated Model Heterogeneous Matryoshka Representation Learning", NeurIPS 2024.

The formulas are those of the authors' code, which also has ``training.clip = 50``. HtFLlib averages without
weights, and its clients forget at the end of every round what their projector has learned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
from torch import Tensor, nn

from protofed.errors import ModelError
from protofed.methods import register
from protofed.methods.contract import Batch, Output, Phase, Round, SplitModel, Task, Tensors, Terms, Traits, Update
from protofed.methods.parts.auxiliary import AuxiliaryMethod, AuxiliaryOptions
from protofed.methods.parts.prior import cross_entropy, head_scores
from protofed.methods.traits import GLOBAL_MODEL
from protofed.options import remote
from protofed.runs.rules import Rule

SHARED_HEAD = Rule(
    "shared_head",
    "Shared head",
    "the class with the largest output of the shared head, which reads the first of the fused features",
    "shared",
    "green",
    20,
)


@dataclass(frozen=True)
class FedMRLOptions(AuxiliaryOptions):
    """Hyperparameters; the loss weighs both heads alike."""

    auxiliary_d: int = remote(
        0, "length d₁ of its features (0 = a quarter of model.d as in HtFLlib; the authors' code: model.d)", least=0
    )
    weighting: Literal["samples", "uniform"] = remote(
        "samples", "weight of a client in the mean: n_i (the authors' code), or 1 (HtFLlib)"
    )


@register
class FedMRL(AuxiliaryMethod[FedMRLOptions]):
    """A private projector ``P_i`` fuses the features of both networks; the shared head reads the first ``d₁``.

    ::

        r = P_i[f_θ(x); f_i(x)],   P_i: ℝ^(d₁+d₂) → ℝ^(d₂)
        CE(φ_θ(r_1, …, r_d₁), y) + CE(φ_i(r), y)

    ``θ`` with its head ``φ_θ`` travels; ``f_i``, ``φ_i`` and ``P_i`` stay.
    """

    name = "fedmrl"
    summary = "features of a shared small model and of the client's own, fused and read by nested heads"
    reference = "Yi et al., NeurIPS 2024, arXiv 2406.00488"
    role = "network"
    Options = FedMRLOptions

    def __init__(self, options: FedMRLOptions, task: Task) -> None:
        width = options.auxiliary_d or max(1, task.feature_dim // 4)
        super().__init__(replace(options, auxiliary_d=width), task)

    @classmethod
    def traits(cls, options: FedMRLOptions) -> Traits:
        """Either head on fused features; the shared network alone, whose head has only seen fused ones."""
        alone = replace(GLOBAL_MODEL, open=False)
        return replace(super().traits(options), rules=options.head_rules(SHARED_HEAD, alone))

    def extend(self, model: SplitModel) -> None:
        """Add the shared network, and a projector to the length of the client's own features."""
        super().extend(model)
        short, own = self.network.feature_dim, model.feature_dim
        if short > own:
            raise ModelError(
                f"fedmrl: the shared model's {short} features have to be the first of a client's {own}: set "
                f"method.auxiliary_d to {own} or less"
            )
        model.extras["projector"] = nn.Linear(short + own, own)

    def round(self, number: int) -> Round:
        """All networks step on the same batches."""
        return Round((Phase((Update(self.loss),)),))

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Cross-entropy of either head on the fused features."""
        own, _, coarse, fine = self.outputs(model, batch)
        return {
            "cross_entropy": cross_entropy(batch, fine, state),
            "shared_cross_entropy": cross_entropy(batch, coarse, state),
        }, own

    def outputs(self, model: SplitModel, batch: Batch) -> tuple[Output, Output, Tensor, Tensor]:
        """Return what either network answers alone, and ``(B, K)`` logits of the shared head and of the own."""
        small = cast("SplitModel", model.extras["network"])
        own, other = model(batch.x), small(batch.x)
        fused = model.extras["projector"](torch.cat([other.features, own.features], -1))
        return own, other, small.head(fused[..., : small.feature_dim]), model.head(fused)

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Logits of either head on the fused features, and of the shared network alone."""
        _, small, coarse, fine = self.outputs(model, batch)
        return {**head_scores(fine, state), "shared_head": coarse, "global_model": small.logits}
