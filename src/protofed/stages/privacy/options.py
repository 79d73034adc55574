"""Options of differential privacy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from protofed.options import Options, remote
from protofed.stages.privacy.accounting import Accountant


@dataclass(frozen=True)
class PrivacyOptions(Options):
    """Differential privacy: what is protected, and how strongly."""

    mode: Literal["none", "client", "sample"] = remote(
        "none",
        "client: each upload is clipped as a whole and noise is added to their sum, which hides whether a client's "
        "data were there; sample: clients train by DP-SGD, which hides whether a single sample was there",
    )
    clip: float = remote(
        1.0, "largest Euclidean norm C of a client's contribution (client) or a sample's gradient (sample)", above=0
    )
    noise: float | None = remote(
        None,
        "noise multiplier z: the standard deviation of the noise is z·C (0 = none, to choose C; none = what "
        "privacy.epsilon needs over the planned rounds)",
        least=0,
    )
    epsilon: float | None = remote(
        None,
        "budget ε(δ) of telling a run with one client (client) or sample (sample) from one without, inf for none; "
        "together with privacy.noise, the run ends before it is exceeded",
        above=0,
    )
    means: float = remote(
        5.0,
        "sample: noise multiplier of class means and numbers of samples, as a multiple of that of steps",
        above=0,
    )
    features: float = remote(
        1.0, "sample: largest Euclidean norm of a sample's features (or outputs) in class means", above=0
    )
    colluders: int = remote(
        1,
        "client, with secure.aggregation: clients of a round that might add no noise, or tell theirs; the noise of "
        "the others suffices",
        least=0,
    )
    least_samples: int = remote(
        0,
        "a client does not report classes of which it has fewer training samples (0 = reports all; a node's own "
        "least_samples, 31 unless it chooses, holds where it is larger)",
        least=0,
    )
    accountant: Accountant = remote(
        "pld",
        "accountant of ε: privacy loss distributions | Rényi differential privacy, whose ε is 8 to 10 % larger",
    )
    delta: float = remote(1e-5, "δ, which should be far below 1/clients or, for samples, 1/n_i", above=0, below=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mode == "none" and (self.noise is not None or self.epsilon is not None):
            raise ValueError("noise and epsilon have no effect without mode: choose mode=client or mode=sample")
        if self.mode != "none" and self.noise is None and self.epsilon is None:
            raise ValueError(
                f"mode={self.mode} needs epsilon (the budget, e.g. 8) or noise (the multiplier, e.g. 1)"
            )

    @property
    def budget(self) -> float:
        """The largest ε, infinite without one."""
        return math.inf if self.epsilon is None else self.epsilon
