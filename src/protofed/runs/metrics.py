"""Metrics of a finished run as they are published, ``metrics.json``, written and read."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from protofed.errors import CheckpointError
from protofed.untrusted import limits
from protofed.untrusted.decoding import Count, Fraction, Line, decode, line, within

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Reason = str
    Bits = str
else:
    Reason = line(limits.REASON)
    Bits = Annotated[str, Meta(pattern="^([0-9a-f]{2})*$")]

METRICS = "metrics.json"
VERSION = 1  #: Number of the format of ``metrics.json``
HEADLINES = {"balanced_accuracy": "Balanced accuracy", "macro_f1": "Macro F1", "auroc": "AUROC"}
"""Metrics that tables show, beside the accuracy, and what they are called."""


@dataclass(frozen=True)
class ClassMetrics:
    """Metrics of one class against all others, in fractions; None where one is not defined."""

    label: Count
    samples: Count  #: Test samples of the class
    recall: Fraction | None = None  #: Share of them that is given the class: the sensitivity
    specificity: Fraction | None = None  #: Share of the other samples that is not given the class
    precision: Fraction | None = None  #: Share of the samples given the class that belong to it
    f1: Fraction | None = None  #: Harmonic mean of precision and recall
    auroc: Fraction | None = None  #: Area under the ROC curve of the class's log-probability


@dataclass(frozen=True)
class SampleMetrics:
    """Metrics of some test samples, in fractions; None where undefined, with the reason in ``undefined``."""

    samples: Count
    accuracy: Fraction | None = None  #: Share of the samples given their class
    balanced_accuracy: Fraction | None = None  #: Mean recall over the classes that the samples have
    macro_f1: Fraction | None = None  #: Mean F1 over the classes that the samples have or are given
    #: Mean over the classes that the samples have of one against all others; with two classes, the area of either
    auroc: Fraction | None = None
    classes: tuple[ClassMetrics, ...] = ()  #: Those that the samples have or are given
    #: ``(class, class given, number of samples)`` for all pairs that occur. Samples whose scores are not finite are
    #: given none, and are missing here
    confusion: tuple[tuple[Count, Count, Count], ...] = ()
    undefined: Mapping[str, Reason] | None = None  #: Why a metric is None, by name
    rule: Line = ""  #: Of a client that answers by another one than the others; ``""`` for theirs
    #: Mean distance between the probability of the class given and the share of samples that belong to it, over ten
    #: bins of equally many samples by that probability (Naeini et al. 2015)
    calibration_error: Fraction | None = None
    #: Of a client, the test samples that are given their class: a bit for each in their order, as hexadecimal
    #: digits, so that two runs on the same samples can be compared; ``""`` if not kept
    right: Bits = ""

    def hits(self) -> NDArray[np.bool_] | None:
        """Return which of the samples are given their class, ``(samples,)``; None if that was not kept."""
        import numpy as np

        if len(self.right) != 2 * (-(-self.samples // 8)) or not self.right:
            return None
        return np.unpackbits(np.frombuffer(bytes.fromhex(self.right), np.uint8))[: self.samples].astype(bool)

    def matrix(self, num_classes: int) -> NDArray[np.int64]:
        """Return the confusion matrix: ``(K, K)`` numbers of samples, rows by class, columns by the class given."""
        import numpy as np

        matrix = np.zeros((num_classes, num_classes), np.int64)
        for label, given, number in self.confusion:
            matrix[label, given] = number
        return matrix


@dataclass(frozen=True)
class Metrics:
    """Metrics of the models with which a run ended, on their clients' own test samples."""

    rule: Line  #: Of all clients that name no other
    round: Annotated[int, within(least=0, most=limits.ROUNDS)]  #: The last one
    overall: SampleMetrics  #: Of all clients' test samples together, each classified by its client's model
    clients: Mapping[str, SampleMetrics]  #: Of each client's, by name

    def over_clients(self, name: str) -> tuple[float, float, int] | None:
        """Return mean and (population) deviation of a metric over clients, and their number; None without any."""
        known = [value for each in self.clients.values() if (value := getattr(each, name)) is not None]
        return (statistics.fmean(known), statistics.pstdev(known), len(known)) if known else None

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``metrics.json``."""
        clients = {name: asdict(each) for name, each in self.clients.items()}
        return {**asdict(self), "version": VERSION, "overall": asdict(self.overall), "clients": clients}

    @classmethod
    def from_dict(cls, value: dict[str, Any], where: str, clients: list[str], num_classes: int) -> Metrics:
        """Return the metrics that :meth:`to_dict` wrote."""
        if value.get("version") != VERSION:
            raise CheckpointError(f"{where}: of another format: compute it again with protofed metrics")
        found = decode(value, cls, where)
        if list(found.clients) != clients:
            raise CheckpointError(f"{where}: was written for other clients")
        for each in (found.overall, *found.clients.values()):
            labels = [c.label for c in each.classes] + [label for pair in each.confusion for label in pair[:2]]
            if max(labels, default=0) >= num_classes:
                raise CheckpointError(f"{where}: class {max(labels)} is beyond the {num_classes} of the run")
        return found
