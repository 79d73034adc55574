"""FedProc: FedAvg, and features that are contrasted with the means of all classes, less and less.

Mu, Shen, Cheng, Geng, Fu, Zhang and Zhang, "FedProc: Prototypical Contrastive Federated Learning on Non-IID data",
2021.

The paper's text could not be read; the formulas are those of public code (that of FPL's authors). Where it would
train nothing in the first round, which has no prototypes yet, clients here minimise cross-entropy.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from protofed.methods import register
from protofed.methods.contract import Batch, Phase, Round, SplitModel, Tensors, Terms, Traits, Update
from protofed.methods.fedavg import FedAvg, FedAvgOptions
from protofed.methods.parts.beside import MeansBeside, contrast
from protofed.options import remote
from protofed.prototypes.table import Prototypes


@dataclass(frozen=True)
class FedProcOptions(FedAvgOptions):
    """Hyperparameters."""

    temperature: float = remote(1.0, "temperature τ of the contrast", above=0)
    prototypes: Literal["during", "after"] = remote(
        "during", "class means from the steps of the last local epoch, or from a pass after training"
    )


@register
class FedProc(MeansBeside, FedAvg[FedProcOptions]):
    """``α·contrast + (1 − α)·CE`` with ``α = 1 − t/(T − 1)`` in round t of T, counted from 0.

    ::

        contrast = −log( e^{cos(f(x), C_y)/τ} / Σ_c e^{cos(f(x), C_c)/τ} )

    Server state: the weights, and the class means as ``prototypes`` ``(K, d)`` and ``present`` ``(K,)``.
    """

    name = "fedproc"
    summary = "FedAvg with features contrasted with the means of all classes"
    reference = "Mu et al., 2021, arXiv 2109.12273"
    Options = FedProcOptions

    @classmethod
    def traits(cls, options: FedProcOptions) -> Traits:
        """Class means travel with the weights; α falls until the last round."""
        return replace(super().traits(options), up="|w| + K_i·d", down="|w| + K·d", rounds="planned")

    def round(self, number: int) -> Round:
        """α is 1 in the first round and 0 in the last."""
        alpha = 1 - (number - 1) / max(1, self.task.rounds - 1)
        return Round((Phase((Update(partial(self.contrasted, max(0.0, alpha))),)),))

    def contrasted(self, alpha: float, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """``α·contrast + (1 − α)·CE``; cross-entropy alone while no class has a prototype."""
        output = model(batch.x)
        table = Prototypes.of(received)
        rows, present = table.rows.unsqueeze(1), table.present.unsqueeze(1)
        apart = contrast(output.features, batch, rows, present, self.options.temperature)
        share = alpha * table.present.any().to(output.features.dtype)
        return {
            "contrast": share * batch.mean(apart),
            "cross_entropy": (1 - share) * batch.cross_entropy(output.logits),
        }, output
