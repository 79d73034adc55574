"""FML, federated mutual learning: every client's model and a shared "meme" teach each other.

Shen, Zhang, Jia, Zhang, Huang, Zhou, Kuang, Wu and Wu, "Federated Mutual Learning", 2020.

The paper's text could not be read; the losses are those of public code. The authors' has both steps of the
federation commented out. HtFLlib and PFLlib differ in three respects, which ``preset = htfl`` combines. Neither the
meme that the prototype papers used nor the code behind their tables is confirmed: choose the meme by ``auxiliary``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from protofed.methods import register
from protofed.methods.contract import Phase, Round, Terms, Update
from protofed.methods.given import Batch, Task, Tensors
from protofed.methods.parts.auxiliary import AuxiliaryMethod, AuxiliaryOptions
from protofed.methods.parts.distillation import divergence
from protofed.methods.parts.presets import Preset, filled
from protofed.methods.parts.prior import cross_entropy
from protofed.options import remote

if TYPE_CHECKING:
    from protofed.models import SplitModel

PRESETS: dict[str, dict[str, Any]] = {
    "official": {"kl_reduction": "batchmean", "detach_teacher": True, "clip": 0.0},
    "htfl": {"kl_reduction": "elementmean", "detach_teacher": False, "clip": 10.0},
}


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
        "official", "whose variants to take where none is named: the authors' code, or HtFLlib's and PFLlib's"
    )
    kl_reduction: Preset[Literal["batchmean", "elementmean"]] = remote(
        None, "KL divided by B (official), or by B·K and so K times weaker (htfl)"
    )
    detach_teacher: Preset[bool] = remote(
        None, "each network learns from the other alone (official), or both minimise both losses (htfl: false)"
    )
    clip: Preset[float] = remote(
        None, "largest norm of each network's gradient, 0 for none (official), 10 (htfl)", least=0
    )


@register
class FML(AuxiliaryMethod[FMLOptions]):
    """Fork: the client's meme becomes the global one; both networks train; merge: the meme becomes the mean."""

    name = "fml"
    summary = "clients' own models and a shared small one teach each other"
    reference = "Shen et al., 2020, arXiv 2006.16765"
    role = "meme"
    Options = FMLOptions

    def __init__(self, options: FMLOptions, task: Task) -> None:
        super().__init__(filled(options, PRESETS), task)

    def round(self, number: int) -> Round:
        """Both networks step on the same batches."""
        return Round((Phase((Update(self.loss, clip=self.options.clip or None),)),))

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """``α·CE_l + (1−α)·KL(p_m ‖ p_l)`` for the own model, ``β·CE_m + (1−β)·KL(p_l ‖ p_m)`` for the meme.

        Teachers are held fixed, so that the sum consists of two losses, one for each network.
        """
        o = self.options
        output = model(batch.x)
        own, meme = output.logits, model.extras["meme"](batch.x).logits
        scale = 1.0 if o.kl_reduction == "batchmean" else 1 / self.task.num_classes
        terms = {
            "cross_entropy": o.alpha * cross_entropy(batch, own, state),
            "meme_cross_entropy": o.beta * cross_entropy(batch, meme, state),
        }
        for name, weight, teacher, student in (
            ("distillation", 1 - o.alpha, meme, own),
            ("meme_distillation", 1 - o.beta, own, meme),
        ):
            if weight:
                fixed = teacher.detach() if o.detach_teacher else teacher
                terms[name] = weight * scale * divergence(batch, fixed, student)
        return terms, output
