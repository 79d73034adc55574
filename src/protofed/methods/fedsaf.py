"""FedSAF: clients match the relations between global prototypes, not their coordinates.

Wu et al., "From Coordinate Matching to Structural Alignment: Rethinking Prototype Alignment in Heterogeneous
Federated Learning", 2026. The paper's text was not at hand. The losses, their weights and that of samples are those
of the first author's public code; it names them CKA, Gram and RDM, the paper GCSA and RCSA.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.methods import register
from protofed.methods.contract import Batch, SplitModel, Tensors, Terms, Traits
from protofed.methods.fedproto import FedProto, FedProtoOptions
from protofed.methods.parts.prior import cross_entropy
from protofed.methods.traits import LOCAL
from protofed.options import fixed, remote
from protofed.prototypes.means import class_means, class_sums
from protofed.prototypes.table import Prototypes

Structure = Literal["cka", "gram", "distances"]


@dataclass(frozen=True)
class FedSAFOptions(FedProtoOptions):
    """Hyperparameters."""

    lambda_: float = remote(1.0, "weight λ of ℓ between a batch's class means and the global prototypes", least=0)
    samples: float = remote(
        1.0, "weight of ℓ between a batch's features and the prototypes of their classes (0: without)", least=0
    )
    structure: Structure = remote(
        "cka",
        "ℓ: 1 − CKA of the two sets, the mean squared difference of their Gram matrices (of unit rows, centred), "
        "or 1 − the cosine between their distances",
    )
    gamma: float = fixed(1.0)
    regulariser: Literal["prototypes"] = fixed("prototypes")
    distance: Literal["squared"] = fixed("squared")


@register
class FedSAF(FedProto[FedSAFOptions]):
    """``CE + λ·ℓ(c, C) + γ·ℓ(f(x), C_y)`` with the means ``c`` of a batch's classes; no ℓ depends on a basis.

    A sample whose class has no prototype stands for itself. The nearest global prototype is no rule here: nothing
    pulls features towards it.
    """

    name = "fedsaf"
    summary = "clients match angles or distances between global prototypes, in a basis of their own"
    reference = "Wu et al., 2026, arXiv 2605.05959"
    Options = FedSAFOptions

    @classmethod
    def traits(cls, options: FedSAFOptions) -> Traits:
        """FedProto's, with the rules of the head and of the client's own prototypes."""
        return replace(super().traits(options), rules=options.head_rules(LOCAL))

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Cross-entropy and the two structural losses, 0 without prototypes."""
        output, shared = model(batch.x), Prototypes.of(received)
        own = class_means(*class_sums(output.features, batch.y, len(shared.rows), batch.weight))
        both = (own.present & shared.present).to(output.features.dtype)
        known = shared.present[batch.y].unsqueeze(-1)
        targets = torch.where(known, shared.rows[batch.y], output.features.detach())
        weight = torch.ones_like(targets[:, 0]) if batch.weight is None else batch.weight.to(targets.dtype)
        kind = self.options.structure
        samples = structural(output.features, targets, weight * shared.present.any(), kind)
        return {
            "cross_entropy": cross_entropy(batch, output.logits, state),
            "classes": self.options.lambda_ * structural(own.rows, shared.rows, both, kind),
            "samples": self.options.samples * samples,
        }, output


def structural(rows: Tensor, targets: Tensor, weight: Tensor, kind: Structure) -> Tensor:
    """Return ``ℓ`` between two sets of ``(n, d)`` rows, 0 for fewer than two; rows of ``weight`` 0 do not count."""
    tiny = torch.finfo(rows.dtype).tiny ** 0.5
    w = weight / weight.sum().clamp(min=tiny)
    pairs = w.unsqueeze(0) * w.unsqueeze(1)
    if kind == "gram":
        rows, targets = F.normalize(rows, dim=-1), F.normalize(targets, dim=-1)
    grams = [_gram(x, w) for x in (rows, targets)]
    if kind == "gram":
        value = (pairs * (grams[0] - grams[1]).square()).sum()
    else:
        a, b = grams if kind == "cka" else (_distances(gram) for gram in grams)
        lengths = (pairs * a.square()).sum() * (pairs * b.square()).sum()
        value = 1 - (pairs * a * b).sum() / lengths.clamp(min=tiny).sqrt()
    return torch.where((weight > 0).sum() > 1, value, 0.0)


def _gram(rows: Tensor, w: Tensor) -> Tensor:
    """Return the Gram matrix of rows, centred over those that count."""
    held = (w > 0).unsqueeze(-1)
    centred = torch.where(held, rows, 0.0) - w @ torch.where(held, rows, 0.0)
    return centred @ centred.mT


def _distances(gram: Tensor) -> Tensor:
    """Return Euclidean distances; those of coinciding rows have no gradient."""
    lengths = gram.diagonal(dim1=-2, dim2=-1)
    tiny = torch.finfo(gram.dtype).tiny
    floor = torch.finfo(gram.dtype).eps * lengths.detach().amax().clamp(min=tiny)
    squared = lengths.unsqueeze(-1) + lengths.unsqueeze(-2) - 2 * gram
    return torch.where(squared > floor, squared.clamp(min=floor).sqrt(), 0.0)
