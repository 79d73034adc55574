"""Metrics of a finished run, computed by scikit-learn from the models that the run left."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protofed.config.schema import Experiment
from protofed.data.federation import load_client
from protofed.data.local import data_path
from protofed.data.preparing import Agreed
from protofed.errors import DataError
from protofed.experiments.ending import ModelsDescription, open_run
from protofed.experiments.loading import load_data
from protofed.models.encoders import EncoderOptions
from protofed.runs.metrics import HEADLINES, METRICS, ClassMetrics, Metrics, SampleMetrics
from protofed.runs.run import Run
from protofed.samples import FederatedData, Samples
from protofed.storage.files import write_json
from protofed.trained.opening import open_client, table_of

_LEAST = -1e300  #: In place of the score of a class that a rule cannot give, which is -inf
_SCORES = "some samples have no finite scores"


def compute(run: Run, rule: str = "", trust_code: bool = False) -> Metrics:
    """Return the metrics of the models with which a run ended, on their clients' own test samples.

    The models are those on disk, and they compute on a CPU: the engine of the run makes no difference.

    Raises:
        DataError: If the data are missing or others, or code is not trusted.
        CheckpointError: If the run has not finished, or left no models.
    """
    first = open_client(run, run.clients[0].name, trust_code)
    main = first.rule(rule or first.main_rule)
    given = answers(run, rule, trust_code)
    each = {
        name: replace(
            of_samples(*own[1:]),
            rule=own.rule if own.rule != main else "",
            right=np.packbits(own.right).tobytes().hex(),
        )
        for name, own in given.items()
    }
    overall = of_samples(*(np.concatenate(part) for part in list(zip(*given.values(), strict=True))[1:]))
    return Metrics(main, run.last_round, overall, each)


class Answers(NamedTuple):
    """A trained client's answers for its test samples."""

    rule: str
    y: NDArray[np.int64]  #: ``(n,)`` true classes
    labels: NDArray[np.int64]  #: ``(n,)`` predicted classes; -1 for none
    log_probabilities: NDArray[np.float64]  #: ``(n, K)``

    @property
    def right(self) -> NDArray[np.bool_]:
        """Which samples are classified rightly, ``(n,)``."""
        return np.equal(self.labels, self.y)


def answers(run: Run, rule: str = "", trust_code: bool = False) -> dict[str, Answers]:
    """Return the answers of a finished run's clients for their own test samples, by name."""
    given = {}
    held: dict[str, Samples] = {}
    for name in run.names:
        trained = open_client(run, name, trust_code)  # refuses what can be refused before data are read
        held = held or {c.name: c.test for c in data_of(run, trust_code).clients}
        chosen = trained.rule(rule)
        labels, scores = trained.classify(held[name].x.cpu(), chosen)
        given[name] = Answers(chosen, held[name].y.cpu().numpy(), labels.numpy(), scores.log_softmax(-1).numpy())
    return given


def store(run: Run, rule: str = "", trust_code: bool = False) -> Metrics:
    """Compute the metrics of a run as :func:`compute` does, and write them to its ``metrics.json``."""
    metrics = compute(run, rule, trust_code)
    write_json(Path(run.directory) / METRICS, metrics.to_dict())
    return metrics


def measure(run: Run) -> Metrics:
    """Store the metrics of a run that this process carried out, with the code that it names."""
    return store(run, trust_code=True)


def data_of(run: Run, trust_code: bool = False) -> FederatedData:
    """Return the data of a run, before any encoder.

    Raises:
        DataError: If the data are others now, or name code that is not trusted.
    """
    with open_run(run, trust_code) as found:
        experiment = replace(found, encoder=EncoderOptions())
        federated = _own_client(run, experiment) if run.federation.network else load_data(experiment)
    now = {c.name: c.test.counts(federated.num_classes).tolist() for c in federated.clients}
    for client in run.clients:
        if now.get(client.name) != client.test:
            raise DataError(f"{run.directory}: {client.name} has other test samples now than in the run")
    return federated


def _own_client(run: Run, experiment: Experiment) -> FederatedData:
    """Return the data of the client of a node's run directory, prepared as the federation agreed."""
    stored = ModelsDescription.read(run.directory / "federation.json")
    agreed = Agreed(stored.encoding.input_shape if stored.encoding else stored.input_shape, table_of(run))
    names = tuple(run.class_names)
    federated, _ = load_client(data_path(experiment.data), experiment.data, experiment.seed, names, agreed)
    (client,) = federated.clients
    return replace(federated, clients=(replace(client, name=run.clients[0].name),))


def of_samples(
    y: NDArray[np.int64], labels: NDArray[np.int64], log_probabilities: NDArray[np.float64]
) -> SampleMetrics:
    """Return the metrics of some samples.

    Args:
        log_probabilities: ``(n, K)``; log-probabilities, because probabilities of 1 that are told apart by nothing
            would be ties.
    """
    from sklearn.metrics import multilabel_confusion_matrix, precision_recall_fscore_support

    n = len(y)
    if not n:
        return SampleMetrics(0, undefined=dict.fromkeys(("accuracy", *HEADLINES), "no test samples"))
    present = np.unique(y).tolist()
    occurring = sorted({*present, *labels[labels >= 0].tolist()})
    precisions, recalls, f1s, supports = precision_recall_fscore_support(
        y, labels, labels=occurring, zero_division=np.nan
    )
    tables = multilabel_confusion_matrix(y, labels, labels=occurring)
    areas, why = _areas(y, log_probabilities, present)
    classes = tuple(
        ClassMetrics(
            label,
            int(support),
            _replace_nan(recall) if support else None,
            _replace_nan(tn / (tn + fp)) if tn + fp else None,
            _replace_nan(precision),
            _replace_nan(f1),
            areas.get(label),
        )
        for label, precision, recall, f1, support, ((tn, fp), _) in zip(
            occurring, precisions, recalls, f1s, supports, tables, strict=True
        )
    )
    given, counts = np.unique(np.stack([y, labels])[:, labels >= 0], axis=1, return_counts=True)
    pairs = tuple((int(a), int(b), int(c)) for a, b, c in zip(*given, counts, strict=True))
    return SampleMetrics(
        n,
        float((y == labels).mean()),
        _mean([c.recall for c in classes]),
        _mean([c.f1 for c in classes]),
        _mean(list(areas.values())),
        classes,
        pairs,
        {"auroc": why} if why else {},
        calibration_error=_calibration_error(y, labels, log_probabilities),
    )


BINS = 10  #: Bins of the calibration error


def _calibration_error(
    y: NDArray[np.int64], labels: NDArray[np.int64], log_probabilities: NDArray[np.float64]
) -> float | None:
    """Return the expected calibration error; None if a sample is given no class."""
    from scipy.special import softmax

    given = softmax(log_probabilities, axis=1)[np.arange(len(y)), labels]
    if (labels < 0).any() or not np.isfinite(given).all():
        return None
    _, alike = np.unique(given, return_inverse=True)  # samples of one probability have their mean, in any order
    gaps = np.bincount(alike, given - (y == labels)) / np.bincount(alike)
    bins = np.array_split(gaps[np.sort(alike)], min(BINS, len(y)))
    return float(sum(abs(each.sum()) for each in bins) / len(y))


def _areas(y: NDArray[np.int64], scores: NDArray[np.float64], present: list[int]) -> tuple[dict[int, float], str]:
    """Return the area under the ROC curve of each class against all others; or none, and why."""
    from scipy.special import logsumexp
    from sklearn.metrics import roc_auc_score

    if len(present) < 2:
        return {}, "all test samples are of one class"
    if bool(np.isnan(scores).any()):
        return {}, _SCORES
    finite = np.maximum(scores, _LEAST)
    # Log-odds tell apart what is as good as certain, whose log-probabilities are all rounded to 0.
    odds = {k: finite[:, k] - logsumexp(np.delete(finite, k, axis=1), axis=1) for k in present}
    return {label: float(roc_auc_score(y == label, odds[label])) for label in present}, ""


def _replace_nan(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
