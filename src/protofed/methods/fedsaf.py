"""FedSAF: clients match the relations between global prototypes, not their coordinates.

Wu et al., "From Coordinate Matching to Structural Alignment: Rethinking Prototype Alignment in Heterogeneous
Federated Learning", 2026. Only the abstract and summaries were at hand: prototypes are averaged as ever, and the
features of a client keep a basis of their own, so that only angles or distances between classes are aligned. Which
of the two is an option here; the paper names two losses, GCSA and RCSA, of which no formula was found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.methods import register
from protofed.methods.contract import Batch, Tensors, Terms, Traits
from protofed.methods.fedproto import FedProto, FedProtoOptions
from protofed.methods.parts.prior import cross_entropy
from protofed.methods.traits import LOCAL
from protofed.options import fixed, remote
from protofed.prototypes.means import class_means, class_sums
from protofed.prototypes.table import Prototypes

if TYPE_CHECKING:
    from protofed.models import SplitModel

Relation = Literal["cosines", "distances"]


@dataclass(frozen=True)
class FedSAFOptions(FedProtoOptions):
    """Hyperparameters."""

    lambda_: float = remote(1.0, "weight λ of the relations", least=0)
    relation: Relation = remote(
        "cosines", "r(c_i, c_j): their cosine, or ‖c_i − c_j‖ as a multiple of its mean over the pairs"
    )
    gamma: float = fixed(1.0)
    regulariser: Literal["prototypes"] = fixed("prototypes")
    distance: Literal["squared"] = fixed("squared")


@register
class FedSAF(FedProto[FedSAFOptions]):
    """``CE + λ·mean (r(c_i, c_j) − r(C_i, C_j))²`` over pairs of classes of a batch, whose means are the ``c_j``.

    The nearest global prototype is no rule here: nothing pulls features towards it.
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
        """Cross-entropy and the mean squared difference of relations; 0 for a batch of one class."""
        output, shared = model(batch.x), Prototypes.of(received)
        own = class_means(*class_sums(output.features, batch.y, len(shared.rows), batch.weight))
        both = own.present & shared.present
        pairs = both.unsqueeze(0) & both.unsqueeze(1) & ~torch.eye(len(both), dtype=torch.bool, device=both.device)
        kind = self.options.relation
        apart = relations(own.rows, pairs, kind) - relations(shared.rows, pairs, kind)
        return {
            "cross_entropy": cross_entropy(batch, output.logits, state),
            "relations": self.options.lambda_ * _mean(apart.square(), pairs),
        }, output


def relations(rows: Tensor, pairs: Tensor, kind: Relation) -> Tensor:
    """Return ``r(c_i, c_j)`` of ``(K, d)`` rows where ``(K, K)`` ``pairs`` is true: ``(K, K)``.

    Neither depends on the rows' basis, nor on their scale, and ``distances`` not on their origin. Coinciding rows
    have no gradient.
    """
    if kind == "cosines":
        directions = F.normalize(rows, dim=-1)
        return directions @ directions.mT
    held = pairs.any(-1, keepdim=True)
    centred = torch.where(held, rows - (rows * held).sum(-2) / held.sum().clamp(min=1), 0.0)  # for accuracy
    gram = centred @ centred.mT
    lengths = gram.diagonal(dim1=-2, dim2=-1)
    floor = torch.finfo(rows.dtype).eps * lengths.detach().amax().clamp(min=torch.finfo(rows.dtype).tiny)
    distances = (lengths.unsqueeze(-1) + lengths.unsqueeze(-2) - 2 * gram).clamp(min=floor).sqrt()
    return distances / _mean(distances, pairs).clamp(min=torch.finfo(rows.dtype).tiny ** 0.5)


def _mean(values: Tensor, pairs: Tensor) -> Tensor:
    """Return the mean over pairs, 0 without any."""
    return torch.where(pairs, values, 0.0).sum() / pairs.sum().clamp(min=1)
