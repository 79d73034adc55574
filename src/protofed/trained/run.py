"""A finished run with its models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofed.experiments import shown
from protofed.runs.metrics import HEADLINES, Metrics
from protofed.runs.run import Run
from protofed.runs.summary import Summary

if TYPE_CHECKING:
    from pandas import DataFrame

    from protofed.trained.opening import Prediction, Ruled, TrainedClient


@dataclass(frozen=True, repr=False)
class TrainedRun(Run):
    """A finished run, whose models classify and can be written to files."""

    summary: Summary
    trusted: bool = True  #: Code that the run's configuration names may be imported; a run of this process did so

    @classmethod
    def of(cls, run: Run, trusted: bool = True) -> TrainedRun:
        """Return a finished run with its models."""
        return cls(**{field.name: getattr(run, field.name) for field in fields(Run)}, trusted=trusted)

    def client(self, name: str) -> TrainedClient:
        """Return a client as it was after the last round, ready to classify."""
        from protofed.trained.opening import open_client

        return open_client(self, name, self.trusted)

    def model(self, client: str, rule: str = "") -> Ruled:
        """Return a client's model with its preprocessing, in eval mode: ``(n, *input_shape)`` to ``(n, K)`` scores.

        Their softmax are the probabilities of :meth:`predict` by the same rule.
        """
        return self.client(client).model(rule)

    def predict(
        self, client: str, samples: Any, rule: str = "", resize: int | None = None, level: float = 0.0
    ) -> Prediction:
        """Classify samples with a client's model.

        Args:
            samples: An array or tensor with or without a dimension of samples, a pandas table, pictures of PIL, or
                paths of images and tables; see :func:`~protofed.trained.inputs.as_samples`.
            rule: E.g. ``head`` or ``global``; ``prototypes`` for the nearest prototype, ``""`` for the client's
                own (see :meth:`~protofed.trained.opening.TrainedClient.rule`).
            resize: Side in pixels to which pictures are scaled and centre-cropped; None for that of the run.
            level: Samples less typical than that are ``unknown`` (closed forms).

        Raises:
            ProtofedError: If the samples do not suit the model, or there is no such rule.
        """
        from protofed.trained.inputs import as_samples

        trained = self.client(client)
        side = trained.resize if resize is None else resize
        return trained.predict(as_samples(samples, trained, side), rule, level)

    def export(
        self,
        client: str,
        path: str | Path,
        file_format: str = "",
        rule: str = "",
        samples: Sequence[str | Path] = (),
    ) -> Path:
        """Write a client's model with its preprocessing, a rule and class names, check the file, add a model card.

        Args:
            file_format: ``onnx``, ``torch_export`` or ``safetensors``; "" to tell by the file's suffix.
            samples: Files with samples on which to check; by default the client's own test samples, if the run's
                data are at hand.
        """
        from protofed.trained.exporting import export

        files = [Path(file) for file in samples]
        return export(self, self.client(client), Path(path), file_format, rule, files, self.trusted).path

    def metrics(self, rule: str = "") -> Metrics:
        """Return balanced accuracy, macro F1, AUROC, recall per class and confusion matrices, by scikit-learn.

        They are those of the final models on their clients' own test samples: from ``metrics.json`` if they are
        there, or else computed, for which the run's data must be at hand.

        Args:
            rule: ``prototypes`` for the nearest prototype, "" for each client's own.
        """
        stored = self.measured
        mixed = stored is not None and any(each.rule for each in stored.clients.values())
        if stored is not None and stored.rule == (rule or self.main_rule) and not (rule and mixed):
            return stored
        from protofed.trained.metrics import compute

        return compute(self, rule, self.trusted)

    def to_frame(self) -> DataFrame:
        """Return one row per round, by number; accuracies in fractions, missing where a round was not evaluated.

        Columns: the accuracy by each rule over all test samples (``RULE``), its mean over clients
        (``RULE_client_mean``) and on validation samples (``validation_RULE``), losses (``loss_TERM``),
        ``bytes_up``, ``bytes_down``, ``seconds``, ``participants``, ``refused`` and ``missing``.
        """
        import pandas as pd

        rows: list[dict[str, Any]] = []
        for record in self.rounds:
            row: dict[str, Any] = {"round": record.round}
            if record.accuracy:
                row |= record.accuracy.weighted
                row |= {f"{rule}_client_mean": mean for rule, (mean, _) in record.accuracy.spreads.items()}
            if record.validation:
                row |= {f"validation_{rule}": value for rule, value in record.validation.weighted.items()}
            row |= {f"loss_{term}": value for term, value in record.losses.items()}
            row |= {f"bytes_{way}": sent for way, sent in record.bytes.items()}
            row |= {
                "seconds": record.seconds["total"],
                "participants": len(record.participants),
                "refused": len(record.refused),
                "missing": len(record.missing),
            }
            rows.append(row)
        return pd.DataFrame(rows, columns=None if rows else ["round"]).set_index("round")

    def clients_frame(self) -> DataFrame:
        """Return one row per client, by name: its model, its samples, and its last accuracy by each rule.

        Columns: ``architecture``, ``parameters``, ``d``, ``train``, ``test``, ``classes`` (with training samples)
        and the accuracy by each rule (``RULE``), missing without test samples. Where there are metrics, by their
        rule also ``balanced_accuracy``, ``macro_f1`` and ``auroc``, missing where they are not defined.
        """
        import pandas as pd

        table = pd.DataFrame(
            {
                "architecture": [c.architecture for c in self.clients],
                "parameters": [c.parameters for c in self.clients],
                "d": [c.d for c in self.clients],
                "train": [sum(c.train) for c in self.clients],
                "test": [sum(c.test) for c in self.clients],
                "classes": [sum(1 for n in c.train if n) for c in self.clients],
            },
            index=pd.Index(self.names, name="client"),
        )
        for rule in self.rules:
            table[rule] = _numbers(self.client_accuracies(rule))
        if self.measured is not None:
            for name in HEADLINES:
                table[name] = _numbers([getattr(self.measured.clients[c.name], name) for c in self.clients])
        return table

    def __repr__(self) -> str:
        """Return the run in one line."""
        return shown.run_line(self)

    def _repr_html_(self) -> str:
        """Return a table and a small plot, for notebooks."""
        return shown.run_html(self)


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [float("nan") if value is None else value for value in values]
