"""Trained clients, rebuilt from a run directory without their data, and their predictions."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from protofed.config.architectures import Architecture, FederationSummary, is_code
from protofed.config.schema import Experiment
from protofed.data import DataOptions, Table
from protofed.data.tables import TableInputs
from protofed.errors import CheckpointError, ConfigError, DataError, unknown_name
from protofed.experiments.builder import Builder, build_model
from protofed.experiments.ending import (
    ModelsDescription,
    client_model,
    client_state,
    open_run,
    read_client,
    read_server,
)
from protofed.experiments.hardware import Hardware
from protofed.methods import ClosedForm
from protofed.methods.contract import Batch, Method, Tensors
from protofed.models import Classifier
from protofed.models.encoders import build_encoder
from protofed.prototypes.inference import most_likely
from protofed.runs.border import Border
from protofed.runs.rules import main_rule, prototype_rule
from protofed.runs.run import Run
from protofed.samples import ClientData, FederatedData, Samples
from protofed.stages.privacy import PrivacyOptions
from protofed.storage.files import open_tensors, read_json, read_tensors

if TYPE_CHECKING:
    from pandas import DataFrame

UNKNOWN = "unknown"  #: Class of samples that are less typical than the level asked for
BATCH = 256  #: Samples that are classified together


@dataclass(frozen=True)
class Prediction:
    """The classes of some samples, by one inference rule."""

    labels: NDArray[np.int64]  #: ``(n,)`` int64; -1 where the model's output is not finite
    #: ``(n, K)`` float64: the softmax of the rule's scores, which are logits for classifiers and −‖f(x) − C_j‖² for
    #: prototypes
    probabilities: NDArray[np.float64]
    class_names: tuple[str, ...]
    rule: str
    #: ``(n,)`` p-values of samples being of classes that the client knows; None if none are known
    typical: NDArray[np.float64] | None = None
    level: float = 0.0  #: Those less typical are of an unknown class

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> list[str]:
        """Name of each sample's class; ``unknown`` below the level, ``""`` where there is none."""
        known = [True] * len(self) if self.typical is None else (self.typical >= self.level).tolist()
        names = [self.class_names[label] if label >= 0 else "" for label in self.labels]
        return [name if own else UNKNOWN for name, own in zip(names, known, strict=True)]

    @property
    def confidences(self) -> NDArray[np.float64]:
        """Probability of each sample's class, ``(n,)``; NaN where there is none."""
        chosen = self.probabilities[np.arange(len(self.labels)), self.labels]
        return np.where(self.labels >= 0, chosen, np.nan)

    def to_frame(self) -> DataFrame:
        """Return a pandas table with the columns ``class``, ``probability`` and one of probabilities per class."""
        import pandas as pd

        columns: dict[str, object] = {"class": self.classes, "probability": self.confidences}
        columns |= {} if self.typical is None else {"typical": self.typical}
        each = {f"p({name})": self.probabilities[:, j] for j, name in enumerate(self.class_names)}
        return pd.DataFrame(columns | each)


class Ruled(Classifier):
    """A trained client as a module that gives the scores of one inference rule."""

    def __init__(
        self, classifier: Classifier, method: Method, received: Tensors, state: Tensors, rule: str
    ) -> None:
        super().__init__(
            classifier.model,
            classifier.class_names,
            classifier.input_shape,
            eight_bit=classifier.eight_bit,
            table=classifier.table,
            encoder=classifier.encoder,
        )
        self.method, self.rule = method, rule
        self.received, self.state = _Kept(received), _Kept(state)
        self.eval()

    def scores(self, x: Tensor) -> Tensors:
        """Return ``(n, K)`` scores of prepared samples by each rule."""
        return self.method.scores(self.model, self.batch(x), self.received.tensors(), self.state.tensors())

    def batch(self, x: Tensor) -> Batch:
        """Return prepared samples as methods take them; their labels do not matter."""
        return Batch(x, x.new_zeros(x.shape[0], dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, K)`` scores of stored samples; their softmax gives the probabilities."""
        return self.scores(self.stored(x))[self.rule]


class _Kept(nn.Module):
    """Tensors by name, which move with the module."""

    def __init__(self, tensors: Tensors) -> None:
        super().__init__()
        # Names of buffers have no dots, and differ from those of a module's attributes.
        self.names = {"/" + name.replace(".", "/"): name for name in tensors}
        for own, name in self.names.items():
            self.register_buffer(own, tensors[name])

    def tensors(self) -> Tensors:
        """Return the tensors by name."""
        return {name: self.get_buffer(own) for own, name in self.names.items()}


@dataclass(frozen=True)
class TrainedClient:
    """A client at the end of a run, ready to classify."""

    name: str
    classifier: Classifier  #: With the preprocessing, in eval mode
    method: Method
    received: Tensors
    state: Tensors
    main_rule: str  #: Of the run's headline numbers
    #: The rule that was right most often on its validation samples when it was last scored; ``""`` without such
    #: samples
    validated: str = ""
    only_class: str = ""  #: Class of all its training samples; ``""`` if they are of several classes
    resize: int = 0  #: Side in pixels of the run's images; 0 if not scaled
    table: Table | None = None
    data: DataOptions = field(default_factory=DataOptions)

    @property
    def rules(self) -> tuple[str, ...]:
        """The inference rules of the method."""
        return self.method.rules

    @property
    def open_rule(self) -> str:
        """The method's rule for clients with samples of one class; ``""`` if it has none."""
        return next((rule.name for rule in self.method.declared.rules if rule.open), "")

    def rule(self, wanted: str) -> str:
        """Return the inference rule that a user means.

        Args:
            wanted: A rule of the method; ``prototypes`` for the nearest prototype (global if there are any, else
                the client's own), ``validated`` for the one that served the client best, ``""`` for the run's main
                rule, or the method's ``open_rule`` if all training samples of the client are of one class.
        """
        chosen = wanted or (self.only_class and self.open_rule) or self.main_rule
        if wanted == "validated":
            if not self.validated:
                raise ConfigError(
                    f"rule=validated: {self.name} was not scored on validation samples: "
                    "data.validation_fraction=0.2 sets some aside before training"
                )
            chosen = self.validated
        if wanted == "prototypes":
            chosen = prototype_rule(self.rules) or wanted
        if chosen not in self.rules:
            raise ConfigError(unknown_name(f"rule of {self.method.name}", chosen, self.rules))
        return chosen

    def model(self, rule: str = "") -> Ruled:
        """Return the module that gives the scores of a rule."""
        return Ruled(self.classifier, self.method, self.received, self.state, self.rule(rule))

    def stored(self, samples: Tensor) -> Tensor:
        """Return the samples of :meth:`predict` as they are stored: raw columns of tables."""
        if self.table is not None:
            return self.table.restore(samples)
        if self.classifier.eight_bit and samples.is_floating_point():
            samples = (255 * samples).round()
        return samples.to(self.classifier.input_dtype)

    def caution(self, rule: str) -> str:
        """Return a warning in one line about a client with samples of one class; "" for any other client."""
        if not self.only_class:
            return ""
        start = f"{self.name} was trained on class {self.only_class} alone"
        if rule == self.open_rule:
            other = f" (--rule {self.main_rule} for the run's main rule)" if rule != self.main_rule else ""
            return f"{start}: answers are by rule {rule}, learned from all clients{other}"
        other = f" (--rule {self.open_rule} can)" if self.open_rule else ""
        return f"{start}: by rule {rule} it may never answer anything else{other}"

    def predict(self, samples: Tensor, rule: str = "", level: float = 0.0) -> Prediction:
        """Classify samples.

        Args:
            level: Samples less typical than that are unknown (closed forms).

        Warns:
            UserWarning: As :meth:`caution`.
        """
        chosen = self.rule(rule)
        if told := self.caution(chosen):
            warnings.warn(told, stacklevel=2)
        labels, scores = self.classify(samples, chosen)
        names, typical = self.classifier.class_names, self._typical(samples, chosen)
        return Prediction(labels.numpy(), scores.softmax(-1).numpy(), names, chosen, typical, level)

    @torch.no_grad()
    def _typical(self, samples: Tensor, rule: str) -> NDArray[np.float64] | None:
        """Return how typical samples are; None if the method knows nothing of that."""
        found = [torch.zeros(0, dtype=torch.float64)]
        for part in samples.split(BATCH):
            batch = Batch(self.classifier.prepare(part), torch.zeros(len(part), dtype=torch.int64))
            if not isinstance(self.method, ClosedForm):
                return None
            own = self.method.typical(self.classifier.model, batch, self.received, self.state, rule)
            if own is None:
                return None
            found.append(own)
        return torch.cat(found).numpy()

    @torch.no_grad()
    def classify(self, samples: Tensor, rule: str) -> tuple[Tensor, Tensor]:
        """Return ``(n,)`` int64 classes and ``(n, K)`` float64 scores; their softmax gives the probabilities."""
        model = Ruled(self.classifier, self.method, self.received, self.state, rule)
        K = len(model.class_names)
        labels, scores = [torch.zeros(0, dtype=torch.int64)], [torch.zeros(0, K)]
        for part in samples.split(BATCH):
            x = model.prepare(part)
            if not bool(x.isfinite().all()):
                raise DataError("samples have values that are not finite: fill them in, or leave the rows out")
            scores.append(model.scores(x)[rule])
            labels.append(most_likely(scores[-1]))
        return torch.cat(labels), torch.cat([part.double() for part in scores])


def open_client(run: Run, name: str, trust_code: bool = False) -> TrainedClient:
    """Rebuild a client with the weights and the state with which a run ended.

    Raises:
        DataError: If there is no such client, or the run names code that is not trusted.
        CheckpointError: If the run has not finished, or a file is missing or damaged.
    """
    described = {client.name: client for client in run.clients}
    if name not in described:
        raise DataError(f"{run.directory}: {unknown_name('client', name, described)}")
    if not run.finished:
        raise CheckpointError(f"{run.directory}: the run has not finished: continue it with --resume")
    with open_run(run, trust_code) as experiment:
        return _open(run, name, experiment, trust_code)


def _open(run: Run, name: str, experiment: Experiment, trusted: bool) -> TrainedClient:
    described = {client.name: client for client in run.clients}
    stored = ModelsDescription.read(run.directory / "federation.json")
    if name not in stored.architectures:
        raise CheckpointError(f"{run.directory / 'federation.json'}: does not describe the model of {name}")
    table = table_of(run, name)
    builder = _builder(run, name, stored, table, experiment, trusted)
    (model,) = builder.models.values()
    path = client_model(run.directory, name)
    if Border(run.directory).signature(path) is None:
        raise CheckpointError(f"{path}: missing")
    try:
        model.load_state_dict(read_tensors(path))
    except RuntimeError as error:
        raise CheckpointError(f"{path}: does not fit the model ({str(error).splitlines()[-1].strip()})") from None
    rest = read_client(run.directory, name, read_server(run.directory))
    taken = TableInputs(table) if table is not None else None
    encoding, encoder = stored.encoding, None
    shape, eight_bit = stored.input_shape, stored.eight_bit
    if encoding is not None:
        shape, eight_bit = encoding.input_shape, encoding.eight_bit
        execution = builder.experiment.execution
        texts, views = (table.texts, table.views) if table else ((), 1)
        options = builder.experiment.encoder
        encoder = build_encoder(options, shape, execution.weights_dir, texts=texts, views=views)
        if encoder.key != encoding.key:
            raise CheckpointError(
                f"{run.directory}: the encoder is another one now (encoder.weights) than in the run"
            )
    classifier = Classifier(model, run.class_names, shape, eight_bit=eight_bit, table=taken, encoder=encoder).eval()
    data = builder.experiment.data
    resize = data.options.get("resize", 0) if isinstance(data.options, dict) else 0
    trained = TrainedClient(
        name,
        classifier.requires_grad_(False),
        builder.method,
        rest.received,
        rest.state,
        main_rule(builder.method.rules, builder.experiment.evaluation.rule),
        run.validated_rule(name),
        "" if (only := described[name].only_class) is None else run.class_names[only],
        resize if type(resize) is int else 0,
        table,
        data,
    )
    try:  # tensors that a file has under other names or in other shapes
        blank = torch.zeros(2, *shape, dtype=classifier.model.head.weight.dtype)
        classes = trained.classify(blank, trained.main_rule)[1].shape[1]
        if classes != len(run.class_names):
            raise ValueError(f"gives {classes} classes, not {len(run.class_names)}")
    except (LookupError, RuntimeError, TypeError, ValueError) as error:
        why = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointError(
            f"{client_state(run.directory, name)}: does not fit {builder.method.name} ({why})"
        ) from None
    return trained


def table_of(run: Run, name: str = "") -> Table | None:
    """Return the preparation of a client's samples, or what all share, as ``federation.json`` has it."""
    path = run.directory / "federation.json"
    tree = read_json(path)
    own = next((c["table"] for c in tree["clients"] if c["name"] == name and "table" in c), tree.get("table"))
    try:
        return None if own is None else Table.from_dict(own)
    except ValueError as error:
        raise CheckpointError(f"{path}: table: {error}") from None


def _builder(
    run: Run, name: str, stored: ModelsDescription, table: Table | None, experiment: Experiment, trusted: bool
) -> Builder:
    """Return the parts of a federation of one client without samples.

    Args:
        trusted: The run may import code, which may take any memory.
    """
    # Plain layers on a CPU: the numbers, and what can be exported, do not depend on the machine of the run.
    precision: Literal["fp64", "fp32"] = "fp64" if experiment.execution.precision == "fp64" else "fp32"
    execution = replace(
        experiment.execution,
        device="cpu",
        threads=0,
        executor="sequential",
        precision=precision,
        convolutions="torch",
    )
    experiment = replace(experiment, execution=execution, privacy=PrivacyOptions())
    kind = torch.uint8 if stored.eight_bit else torch.float32
    nothing = Samples(torch.zeros(0, *stored.input_shape, dtype=kind), torch.zeros(0, dtype=torch.int64))
    client = ClientData(name, nothing, nothing)
    names = tuple(run.class_names)
    federated = FederatedData((client,), len(names), names, stored.input_shape, table, encoding=stored.encoding)
    first = next(iter(stored.architectures.values()))
    held = [sum(column) for column in zip(*(c.train for c in run.clients), strict=True)]
    present = [n for n in held if n]
    own = stored.architectures[name]
    summary = FederationSummary(
        tuple(run.class_names), (own,), first.d, sum(present) / max(1, len(present)), len(run.clients), first
    )
    summary = replace(summary, **stored.told)
    for architecture, file in ((own, name), (first, run.clients[0].name)):
        # Code may do anything while its size is looked at, and sizes cost a second of imports.
        if not trusted and not is_code(architecture.name):
            _check_size(experiment, federated, architecture, client_model(run.directory, file))
    return Builder(experiment, federated, Hardware.of(execution), summary, pretrained=False)


def _check_size(experiment: Experiment, federated: FederatedData, architecture: Architecture, path: Path) -> None:
    """Check, before any memory is taken, that a model is as large as the weights that were stored."""
    with open_tensors(path) as file:
        stored = {n: tuple(file.get_slice(n).get_shape()) for n in file.keys()}  # noqa: SIM118
    with torch.device("meta"):
        model = build_model(experiment, federated, architecture, "shared", pretrained=False)
    wrong = [n for n, t in model.state_dict().items() if stored.get(n) != tuple(t.shape)]
    if wrong:
        raise CheckpointError(f"{path}: does not fit the model of {architecture} ({wrong[0]})")
