"""A federation as an estimator of scikit-learn: each group of samples is a site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import assert_all_finite, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from protofed import methods
from protofed.config.schema import Experiment, Tree, apply_overrides, resolve
from protofed.data import DataOptions
from protofed.data.arrow import from_arrow
from protofed.data.frames import WHERE, as_arrow
from protofed.data.options import Columns
from protofed.data.partition import names
from protofed.data.pool import Listing
from protofed.data.preparing import prepare, raw_parts
from protofed.data.tables import RawColumn
from protofed.errors import ConfigError
from protofed.experiments.assemble import assemble
from protofed.experiments.description import describe_clients
from protofed.experiments.encoding import encode
from protofed.experiments.ending import describe_models
from protofed.experiments.hardware import Hardware
from protofed.experiments.rundir import RunDirectory
from protofed.experiments.running import run_federation
from protofed.rounds.loop import Federation
from protofed.samples import ClientData, FederatedData, Samples
from protofed.trained.inputs import as_samples
from protofed.trained.opening import TrainedClient, open_client

DEFAULT = "fedlda"  #: Method of an estimator that names none
BASE: Tree = {
    "recipe": "estimator",
    "model": {"name": "mlp", "d": 32},
    "training": {"batch_size": 16, "lr": 0.05},
    "data": {"standardise": "federated"},
    # A sample's answer depends on no other sample; with such tiny models, a second thread only waits.
    "execution": {"precision": "fp64", "threads": 1},
    "checkpoint": {"every": 0},
}
"""Recipe of an estimator, before its parameters."""
ROUNDS = 20  #: Rounds of methods that train
_READ = (
    *("categories", "dates", "drop", "keep", "missing", "month_first", "na_values", "ranges"),
    *("text", "text_as", "text_length", "tokenizer"),
)
"""Options of data that apply, beside ``standardise``."""


class ProtofedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Federated classifier of tables: each group of samples is a site, whose samples no other site sees.

    Numbers are standardised over all sites, from sums. :meth:`fit` without groups is one site.

    Args:
        method: Name of a method (``protofed list methods``) or ``file.py:Class``.
        rounds: Of training; None for one if the method needs no more, else 20.
        rule: Inference rule, such as ``head`` or ``prototypes``; "" for the method's main one.
        overrides: Options by dotted name, as for :func:`protofed.run`.
        random_state: Of initial weights and the order of samples.

    Attributes:
        classes_: Labels in order.
        sites_: Values of the groups in order.
        clients_: Trained client of each site.
    """

    def __init__(
        self,
        method: str = DEFAULT,
        *,
        rounds: int | None = None,
        rule: str = "",
        overrides: Mapping[str, Any] | None = None,
        random_state: Any = 0,
    ) -> None:
        self.method = method
        self.rounds = rounds
        self.rule = rule
        self.overrides = overrides
        self.random_state = random_state

    def fit(self, X: Any, y: Any, groups: Any = None) -> ProtofedClassifier:
        """Train the models of all sites.

        Args:
            X: ``(n, F)`` numbers, or a pandas frame, also with categories and, by ``data.dates``, with dates.
            y: ``(n,)`` labels.
            groups: ``(n,)`` site of each sample; None for one site.
        """
        experiment = self._experiment()
        raw, columns, labels = self._training(X, y, experiment.data)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            only = self.classes_.tolist()[0]
            raise ValueError(f"the samples are of one class, {only!r}: a classifier needs two or more")
        sites = np.zeros(len(codes), np.int64) if groups is None else column_or_1d(groups)
        check_consistent_length(raw, sites)
        if (lacking := next((row for row, site in enumerate(sites) if not _there(site)), None)) is not None:
            raise ValueError(f"groups: has no site in row {lacking}: name one, or leave the sample out")
        self.sites_, owner = np.unique(sites, return_inverse=True)
        parts = [torch.from_numpy(np.flatnonzero(owner == site)) for site in range(len(self.sites_))]
        targets = torch.from_numpy(codes.astype(np.int64))
        nothing = Samples(raw[:0], targets[:0])
        clients = tuple(
            ClientData(name, Samples(raw[rows], targets[rows]), nothing)
            for name, rows in zip(names(len(parts)), parts, strict=True)
        )
        called = tuple(str(code) for code in range(len(self.classes_)))
        federated = FederatedData(clients, len(called), called, tuple(raw.shape[1:]))
        self.clients_ = _train(experiment, prepare(federated, columns, experiment.data))
        self._samples = [len(rows) for rows in parts]
        return self

    def predict_proba(self, X: Any, groups: Any = None) -> NDArray[np.float64]:
        """Return the probability of each class, ``(n, K)``.

        Args:
            groups: ``(n,)`` site of each sample, whose own model answers. Samples of other sites, and all samples
                without groups, are answered by the mean of all sites' probabilities, weighed by their numbers of
                samples, by the rule of the server's model if the method has one.
        """
        check_is_fitted(self)
        X = self._check_samples(X)
        place = np.full(len(X), -1)  # of each sample's site
        if groups is not None:
            check_consistent_length(X, groups)
            known = {site: number for number, site in enumerate(self.sites_.tolist())}
            place[:] = [known.get(site, -1) for site in column_or_1d(groups).tolist()]
        found = np.zeros((len(X), len(self.classes_)))
        for number, client in enumerate(self.clients_):
            if (own := place == number).any():
                found[own] = _probabilities(client, X[own], client.rule(self.rule))
        if (rest := place < 0).any():
            total = sum(self._samples)
            for client, samples in zip(self.clients_, self._samples, strict=True):
                rule = client.rule(self.rule or client.open_rule)
                found[rest] += samples / total * _probabilities(client, X[rest], rule)
        return found

    def predict(self, X: Any, groups: Any = None) -> NDArray[Any]:
        """Return the most probable label of each sample, ``(n,)``."""
        chosen = self.predict_proba(X, groups).argmax(1)
        labels: NDArray[Any] = self.classes_[chosen]
        return labels

    def score(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> float:
        """Return the accuracy."""
        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))

    def _experiment(self) -> Experiment:
        """Return the experiment that the parameters describe."""
        given = {"method.name": self.method, **(self.overrides or {})}
        for name in given:
            section, option, *_ = *name.split("."), ""
            if section == "partition" or (section == "data" and option not in (*_READ, "standardise")):
                raise ConfigError(f"{name}: X, y and groups are the data: only data.{', data.'.join(_READ)} apply")
        tree = apply_overrides(BASE, given)
        once = methods.methods().get(self.method).traits(resolve(tree).method_options).rounds == "one"
        if rounds := self.rounds or (not once and ROUNDS):
            tree = apply_overrides(tree, {"rounds": rounds})
        seed = self.random_state
        drawn = seed if isinstance(seed, Integral) else check_random_state(seed).randint(2**31 - 1)
        return resolve(tree, seed=int(drawn))

    def _training(
        self, X: Any, y: Any, data: DataOptions
    ) -> tuple[Tensor, tuple[RawColumn, ...] | None, NDArray[Any]]:
        """Return raw samples ``(n, C)``, their columns, and the labels."""
        self._framed = hasattr(X, "select_dtypes")
        if self._framed:
            validate_data(self, X, skip_check_array=True)
            labels = column_or_1d(y, warn=True)
            assert_all_finite(labels, input_name="y")
            check_consistent_length(X, labels)
            asked = replace(Columns.of(data), labelled=False)
            table = as_arrow(X, texts=asked.as_texts, na_values=data.na_values)
            listing = from_arrow(table, asked, WHERE, data.budget())
        else:
            finite = True if data.missing == "refuse" else "allow-nan"
            X, labels = validate_data(self, X, y, dtype=np.float64, ensure_all_finite=finite, ensure_min_samples=2)
            columns = tuple(RawColumn(f"x{number}") for number in range(X.shape[1]))
            raw = torch.from_numpy(X.copy())
            listing = Listing(np.zeros(len(X), np.int64), lambda rows: raw[rows], "X", columns=columns)
        check_classification_targets(labels)
        (found,), agreed, _ = raw_parts([listing], [listing.read(torch.arange(len(listing)))], data)
        return found, agreed, labels

    def _check_samples(self, X: Any) -> Any:
        """Return samples to classify as an array, or as a frame if the models were trained on one."""
        if self._framed and hasattr(X, "select_dtypes"):
            validate_data(self, X, skip_check_array=True, reset=False)
            return X
        finite = True if self.clients_[0].data.missing == "refuse" else "allow-nan"
        return validate_data(self, X, dtype=np.float64, ensure_all_finite=finite, reset=False)


def _there(value: Any) -> bool:
    """Return whether a value is neither None nor NaN, pandas.NA or the like, which do not equal themselves."""
    return value is not None and str(value == value) == "True"


def _train(experiment: Experiment, data: FederatedData) -> list[TrainedClient]:
    """Run an experiment with data in memory and return its clients; nothing of it stays on disk."""

    def begin(hardware: Hardware) -> tuple[Federation, Tree]:
        vectors = encode(data, experiment.encoder, experiment.execution.weights_dir, kept=False)
        federation, federated = assemble(experiment, vectors, None, hardware)
        told = describe_clients(federation, federated)
        return federation, told | {"models": describe_models(experiment, federated)}

    threads = torch.get_num_threads()
    try:
        with TemporaryDirectory(prefix="protofed-") as folder:
            run = run_federation(experiment, RunDirectory(Path(folder) / "run"), begin)
            return [open_client(run, client.name, True) for client in data.clients]
    finally:
        torch.set_num_threads(threads)


def _probabilities(client: TrainedClient, X: Any, rule: str) -> NDArray[np.float64]:
    scores = client.classify(as_samples(X, client), rule)[1]
    found: NDArray[np.float64] = scores.softmax(-1).numpy()
    return found
