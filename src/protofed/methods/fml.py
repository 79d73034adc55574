"""FML, federated mutual learning: every client's model and a shared "meme" teach each other.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu and Wu, "Federated Mutual Learning", 2020.

The paper's text could not be read; the losses are those of public code. The authors' has both steps of the
federation commented out. HtFLlib and PFLlib (``preset = htfl``) divide KL by B·K instead of B, let both networks
minimise both losses, and clip each network's gradient to a norm of 10. Neither the meme that the prototype papers
used nor the code behind their tables is confirmed: choose the meme by ``auxiliary``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from protofed.methods import register
from protofed.methods.contract import Batch, Phase, Round, SplitModel, Tensors, Terms, Update
from protofed.methods.parts.auxiliary import AuxiliaryMethod, AuxiliaryOptions
from protofed.methods.parts.prior import cross_entropy
from protofed.methods.parts.training import HTFL_CLIP, divergence
from protofed.options import remote


@dataclass(frozen=True)
class FMLOptions(AuxiliaryOptions):
    """Hyperparameters; the prototype papers use α = β = 0.5."""

    alpha: float = remote(
        0.5, "weight α of the client's own cross-entropy; 1 − α is distilled from the meme", least=0, most=1
    )
    beta: float = remote(
        0.5, "weight β of the meme's cross-entropy; 1 − β is distilled from the client's model", least=0, most=1
    )
    preset: Literal["official", "htfl"] = remote(
        "official",
        "the authors' code: KL divided by B, each network learns from the other; or HtFLlib's and PFLlib's: KL "
        "divided by B·K, both networks minimise both losses, gradients clipped to a norm of 10",
    )


@register
class FML(AuxiliaryMethod[FMLOptions]):
    """Fork: the client's meme becomes the global one; both networks train; merge: the meme becomes the mean."""

    name = "fml"
    summary = "clients' own models and a shared small one teach each other"
    reference = "Shen et al., 2020, arXiv 2006.16765"
    role = "meme"
    Options = FMLOptions

    def round(self, number: int) -> Round:
        """Both networks step on the same batches."""
        return Round((Phase((Update(self.loss, clip=HTFL_CLIP if self.options.preset == "htfl" else None),)),))

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """``α·CE_l + (1−α)·KL(p_m ‖ p_l)`` for the own model, ``β·CE_m + (1−β)·KL(p_l ‖ p_m)`` for the meme.

        Teachers are held fixed (``official``), so that the sum consists of two losses, one for each network.
        """
        o = self.options
        output = model(batch.x)
        own, meme = output.logits, model.extras["meme"](batch.x).logits
        official = o.preset == "official"
        scale = 1.0 if official else 1 / self.task.num_classes
        terms = {
            "cross_entropy": o.alpha * cross_entropy(batch, own, state),
            "meme_cross_entropy": o.beta * cross_entropy(batch, meme, state),
        }
        for name, weight, teacher, student in (
            ("distillation", 1 - o.alpha, meme, own),
            ("meme_distillation", 1 - o.beta, own, meme),
        ):
            if weight:
                fixed = teacher.detach() if official else teacher
                terms[name] = weight * scale * divergence(batch, fixed, student)
        return terms, output
