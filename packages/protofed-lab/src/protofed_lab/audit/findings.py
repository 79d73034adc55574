"""The findings of an audit, as data for the report and for ``audit.json``."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from protofed.runs.spent import Spent


@dataclass(frozen=True)
class Finding:
    """The result of one attack by one observer."""

    attack: str  #: The observer's question
    observer: str  #: Who attacks, and with what
    measure: str
    value: float | None  #: None if the attack has nothing to work on
    baseline: float | None = None  #: The figure of a guess that saw nothing of the run
    error: float | None = None  #: Standard error; None if unknown
    note: str = ""  #: The basis of the figure, or why there is none, as a sentence
    key: str = ""

    @property
    def learned(self) -> bool | None:
        """Return whether the attack beats its guess by more than two standard errors; None without a figure."""
        if self.value is None or self.baseline is None:
            return None
        margin = 2 * self.error if self.error is not None else 0.05 * abs(self.baseline)
        lower_is_better = self.measure.startswith("error")
        gain = self.baseline - self.value if lower_is_better else self.value - self.baseline
        return gain > margin

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as plain values."""
        plain = {n: None if isinstance(v, float) and math.isnan(v) else v for n, v in vars(self).items()}
        return {**plain, "learned": self.learned}


@dataclass(frozen=True)
class Reconstruction:
    """An input that an attack made of one class of one client."""

    client: str
    label: str
    found: Tensor  #: ``(*input_shape)`` the reconstruction, in [0, 1]
    nearest: Tensor  #: The most similar one of the client's training samples of the class
    guess: Tensor  #: The mean of public samples of the class
    similarity: float  #: SSIM of ``found`` and ``nearest``
    baseline: float  #: SSIM of ``guess`` and the training sample that is most similar to it

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {n: getattr(self, n) for n in ("client", "label", "similarity", "baseline")}


@dataclass(frozen=True)
class Audit:
    """All findings on one run."""

    method: str
    round: int
    clients: int
    sent: str  #: Fields of an upload, in words
    protections: tuple[str, ...]
    #: Cost of differential privacy over the run, without the attacked round; None without noise
    spent: Spent | None
    findings: tuple[Finding, ...]
    pictures: tuple[Reconstruction, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Return the audit as plain values, without pictures."""
        return {
            "version": 1,
            **{n: getattr(self, n) for n in ("method", "round", "clients", "sent")},
            "protections": list(self.protections),
            "privacy": self.spent.to_dict() if self.spent else None,
            "findings": [f.to_dict() for f in self.findings],
            "pictures": [p.to_dict() for p in self.pictures],
        }
