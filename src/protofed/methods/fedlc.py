"""FedLC: FedAvg whose clients calibrate their logits by how often they see each class.

Zhang et al., "Federated Learning with Label Distribution Skew via Logits Calibration", ICML 2022, Eq. 5. The sum in
the denominator of that equation leaves out the class itself; public implementations take the cross-entropy of the
calibrated logits, as here. A class that a client does not hold is infinitely rare, and left out of its loss.

``calibration = prior`` adds log-frequencies instead (balanced softmax), in which absent classes stay: FedAvg of a
network that is trained as the one of :mod:`~protofed.methods.beacon`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from torch import Tensor

from protofed.methods import register
from protofed.methods.contract import Batch, SplitModel, Tensors, Terms, Traits
from protofed.methods.fedavg import FedAvg, FedAvgOptions
from protofed.methods.parts.prior import log_prior, over
from protofed.methods.traits import GLOBAL_MODEL, HEAD
from protofed.options import remote
from protofed.runs.rules import GLOBAL_PRIOR


@dataclass(frozen=True)
class FedLCOptions(FedAvgOptions):
    """Hyperparameters; the authors name no default of τ."""

    calibration: Literal["margin", "prior"] = remote(
        "margin", "what is added to the logits in the loss: −τ·n_y^(−1/4), or π_y = log((n_y + ρ)/(n + ρK))"
    )
    tau: float = remote(1.0, "weight τ of the margins; has to be tuned (margin)", least=0)
    rho: float = remote(1.0, "ρ, added to the count of every class (prior)", above=0)


@register
class FedLC(FedAvg[FedLCOptions]):
    """Cross-entropy of ``f(x) + c_i``, where ``c_i`` follows from the client's class frequencies."""

    name = "fedlc"
    summary = "FedAvg with logits calibrated by the frequencies of a client's classes"
    reference = "Zhang et al., ICML 2022, arXiv 2209.00189"
    Options = FedLCOptions

    @classmethod
    def traits(cls, options: FedLCOptions) -> Traits:
        """The global model without the client's class frequencies and with them; its own model with them."""
        found = replace(super().traits(options), rules=(GLOBAL_MODEL, GLOBAL_PRIOR, HEAD))
        return found.protecting(local_only=("own_calibration",))

    def client_state(self, counts: Tensor) -> Tensors:
        """Remember ``c_i`` for the loss, and for predictions."""
        return {"calibration": self.calibration(counts), "own_calibration": self.calibration(counts)}

    def shifted(self, state: Tensors, counts: Tensor) -> Tensors:
        """Predict with the new frequencies."""
        return {**state, "own_calibration": self.calibration(counts.to(state["calibration"].device))}

    def calibration(self, counts: Tensor) -> Tensor:
        """Return ``c_i``, ``(K,)``, from the ``(K,)`` int64 samples per class."""
        if self.options.calibration == "prior":
            return log_prior(counts, self.options.rho, self.task.dtype)
        margins = -self.options.tau * counts.clamp(min=1).double().pow(-0.25)
        return over(margins.to(self.task.dtype), counts > 0)

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Eq. 5."""
        output = model(batch.x)
        return {"cross_entropy": batch.cross_entropy(output.logits + state["calibration"])}, output

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Logits of either model, and what the client's frequencies add to them."""
        plain = super().scores(model, batch, received, state)
        return {
            "global_model": plain["global_model"],
            "global_prior": plain["global_model"] + state["own_calibration"],
            "head": plain["head"] + state["own_calibration"],
        }
