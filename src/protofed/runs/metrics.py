"""Metrics of a finished run as they are published, ``metrics.json``, written and read."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from protofed.errors import CheckpointError
from protofed.runs.checks import is_count, is_number, is_text
from protofed.untrusted import limits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

METRICS = "metrics.json"
VERSION = 1
"""Number of the format of ``metrics.json``."""
HEADLINES = {"balanced_accuracy": "Balanced accuracy", "macro_f1": "Macro F1", "auroc": "AUROC"}
"""Metrics that tables show, beside the accuracy, and what they are called."""


@dataclass(frozen=True)
class ClassMetrics:
    """Metrics of one class against all others, in fractions; None where one is not defined.

    Attributes:
        label: Number of the class.
        samples: Number of test samples of the class.
        recall: Share of them that is given the class: the sensitivity.
        specificity: Share of the other samples that is not given the class.
        precision: Share of the samples given the class that belong to it.
        f1: Harmonic mean of precision and recall.
        auroc: Area under the ROC curve of the class's log-probability.
    """

    label: int
    samples: int
    recall: float | None = None
    specificity: float | None = None
    precision: float | None = None
    f1: float | None = None
    auroc: float | None = None


@dataclass(frozen=True)
class SampleMetrics:
    """Metrics of some test samples, in fractions; None where one is not defined, with the reason in ``undefined``.

    Attributes:
        samples: Number of samples.
        accuracy: Share of the samples given their class.
        balanced_accuracy: Mean recall over the classes that the samples have.
        macro_f1: Mean F1 over the classes that the samples have or are given.
        auroc: Mean over the classes that the samples have of one against all others; with two classes, the area of
            either.
        classes: The classes that the samples have or are given.
        confusion: ``(class, class given, number of samples)`` for all pairs that occur. Samples whose scores are
            not finite are given none, and are missing here.
        undefined: Why a metric is None, by name.
        rule: Inference rule of a client that answers by another one than the others; ``""`` for theirs.
    """

    samples: int
    accuracy: float | None = None
    balanced_accuracy: float | None = None
    macro_f1: float | None = None
    auroc: float | None = None
    classes: tuple[ClassMetrics, ...] = ()
    confusion: tuple[tuple[int, int, int], ...] = ()
    undefined: Mapping[str, str] | None = None
    rule: str = ""

    def matrix(self, num_classes: int) -> NDArray[np.int64]:
        """Return the confusion matrix: ``(K, K)`` numbers of samples, rows by class, columns by the class given."""
        import numpy as np

        matrix = np.zeros((num_classes, num_classes), np.int64)
        for label, given, number in self.confusion:
            matrix[label, given] = number
        return matrix

    @classmethod
    def from_dict(cls, value: Any, where: str, num_classes: int) -> SampleMetrics:
        """Return the metrics that were written.

        Args:
            where: What errors begin with.
            num_classes: Number of classes ``K``.

        Raises:
            CheckpointError: If ``value`` is something else.
        """
        table = value if isinstance(value, dict) else {}
        numbers = {name: table.get(name) for name in ("accuracy", *HEADLINES)}
        classes, pairs, undefined = (table.get(name) for name in ("classes", "confusion", "undefined"))
        if (
            not is_count(table.get("samples"))
            or not all(map(_is_fraction, numbers.values()))
            or not isinstance(classes, list)
            or not isinstance(pairs, list)
            or not isinstance(undefined, dict)
            or not is_text(table.get("rule", ""))
            or not all(is_text(text, limits.REASON) for text in (*undefined, *undefined.values()))
        ):
            raise CheckpointError(f"{where}: should have samples, {', '.join(numbers)}, classes and confusion")
        for pair in pairs:
            if not isinstance(pair, list) or len(pair) != 3 or not all(map(is_count, pair)):
                raise CheckpointError(f"{where}: confusion should list a class, the class given and their number")
            if max(pair[:2]) >= num_classes:
                raise CheckpointError(f"{where}: class {max(pair[:2])} is beyond the {num_classes} of the run")
        found = tuple(_class_metrics(each, where, num_classes) for each in classes)
        return cls(
            table["samples"],
            **numbers,
            classes=found,
            confusion=tuple(map(tuple, pairs)),
            undefined=undefined,
            rule=table.get("rule", ""),
        )


def _is_fraction(value: Any) -> bool:
    return value is None or (is_number(value) and 0 <= value <= 1)


def _class_metrics(value: Any, where: str, num_classes: int) -> ClassMetrics:
    names = [f.name for f in fields(ClassMetrics)]
    if (
        not isinstance(value, dict)
        or not is_count(value.get("label"), most=num_classes)
        or not is_count(value.get("samples"))
        or not all(_is_fraction(value.get(name)) for name in names[2:])
    ):
        raise CheckpointError(f"{where}: classes should have {', '.join(names)}")
    found: dict[str, Any] = {name: value.get(name) for name in names}
    return ClassMetrics(**found)


@dataclass(frozen=True)
class Metrics:
    """Metrics of the models with which a run ended, on their clients' own test samples.

    Attributes:
        rule: Inference rule, of all clients that name no other.
        round: The run's last round.
        overall: Of all clients' test samples together, each classified by its client's model.
        clients: Of each client's, by name.
    """

    rule: str
    round: int
    overall: SampleMetrics
    clients: Mapping[str, SampleMetrics]

    def over_clients(self, name: str) -> tuple[float, float, int] | None:
        """Return mean and standard deviation (of the population) of a metric over clients, and their number.

        Args:
            name: Name of an attribute of :class:`SampleMetrics`.

        Returns:
            None if it is defined for no client.
        """
        known = [value for each in self.clients.values() if (value := getattr(each, name)) is not None]
        return (statistics.fmean(known), statistics.pstdev(known), len(known)) if known else None

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``metrics.json``."""
        clients = {name: asdict(each) for name, each in self.clients.items()}
        return {**asdict(self), "version": VERSION, "overall": asdict(self.overall), "clients": clients}

    @classmethod
    def from_dict(cls, value: dict[str, Any], where: str, clients: list[str], num_classes: int) -> Metrics:
        """Return the metrics that :meth:`to_dict` wrote.

        Args:
            where: What errors begin with.
            num_classes: Number of classes ``K``.

        Raises:
            CheckpointError: If a part of ``value`` is missing or of another kind, or belongs to another run.
        """
        if value.get("version") != VERSION:
            raise CheckpointError(f"{where}: of another format: compute it again with protofed metrics")
        if not is_text(value.get("rule")) or not is_count(value.get("round"), most=limits.ROUNDS + 1):
            raise CheckpointError(f"{where}: should have a rule and a round")
        each = value.get("clients")
        if not isinstance(each, dict) or list(each) != clients:
            raise CheckpointError(f"{where}: was written for other clients")
        return cls(
            value["rule"],
            value["round"],
            SampleMetrics.from_dict(value.get("overall"), f"{where}: overall", num_classes),
            {n: SampleMetrics.from_dict(part, f"{where}: {n}", num_classes) for n, part in each.items()},
        )
