"""ProtoNorm: global prototypes are spread over the unit sphere, then scaled up.

Lee, Shin and Choi, "Heterogeneous Federated Learning with Prototype Alignment and Upscaling" (2025). Equation and
algorithm numbers are the paper's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from protofed.methods import register
from protofed.methods.contract import Aggregate, Tensors, Upload
from protofed.methods.fedproto import FedProto, FedProtoOptions
from protofed.methods.parts.nearest import mean_of
from protofed.options import fixed, remote
from protofed.prototypes.alignment import align
from protofed.prototypes.geometry import unit_vectors


@dataclass(frozen=True)
class ProtoNormOptions(FedProtoOptions):
    """Hyperparameters; λ is 1 in the paper and 10 in its code."""

    gamma: float = remote(
        100.0,
        "upscaling γ (Eq. 15): 100 for CIFAR-10, 200 for CIFAR-100 and Flowers-102, 400 for Tiny ImageNet",
        least=0,
    )
    aggregation: Literal["mean"] = fixed("mean")
    alignment: bool = remote(True, "prototype alignment, PA (Algorithm 1); without it means are only normalised")
    upscaling: bool = remote(True, "prototype upscaling, PU; without it γ = 1")
    momentum: float = remote(0.9, "momentum μ of the alignment (Eq. 12)", least=0, below=1)
    step: float = remote(0.1, "step size η of the alignment (Eq. 12), ×0.95 every 10 iterations", above=0)
    max_iterations: int = remote(500, "most alignment iterations per round", least=0)
    patience: int = remote(
        10, "stop once the mean force has not changed (4 decimals) for so many iterations", least=1
    )


@register
class ProtoNorm(FedProto[ProtoNormOptions]):
    """FedProto's client with the target ``γ·u_y``; the server aligns."""

    name = "protonorm"
    summary = "class means spread over the unit sphere (alignment) and scaled up"
    reference = "Lee, Shin and Choi, 2025, arXiv 2507.04310"
    Options = ProtoNormOptions
    support: Tensor | None = None  # ``(K, d)`` bool, each class's coordinates; None for all

    @property
    def gamma(self) -> float:
        """Eq. 15: the target is ``γ·u``, or ``u`` without upscaling."""
        return self.options.gamma if self.options.upscaling else 1.0

    def update(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """Eq. 7, then Algorithm 1 over all classes that have a prototype."""
        means = mean_of(uploads, self.task)
        state = self.merge(server, means)
        if not means.present.any():
            return Aggregate(state, {})
        present = state["present"]
        table, diagnostics = state["prototypes"].clone(), dict[str, Any]()
        if self.options.alignment:
            aligned = align(
                table[present],
                momentum=self.options.momentum,
                lr=self.options.step,
                max_iterations=self.options.max_iterations,
                patience=self.options.patience,
                track_distances=round_number == 1,  # Fig. 4 shows the first round
                support=None if self.support is None else self.support[present],
            )
            table[present] = aligned.directions
            diagnostics = {"alignment_iterations": aligned.iterations, "alignment_energy": aligned.energy}
            if aligned.distances:
                diagnostics["alignment_distances"] = [list(extent) for extent in aligned.distances]
        else:
            table[present] = unit_vectors(table[present])
        return Aggregate({**state, "prototypes": table}, diagnostics)
