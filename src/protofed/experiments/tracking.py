"""Trackers of experiments, as thin adapters that receive the same reports as a progress bar.

All of them work offline: files stay on this machine unless the tracker's own settings say otherwise.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from protofed.errors import ConfigError, unknown_name
from protofed.experiments import Progress
from protofed.runs.files import read_config
from protofed.runs.labels import flat
from protofed.runs.records import SCORED, RoundRecord
from protofed.runs.run import Run


class Tracker(Progress, ABC):
    """Base of the adapters: runs, the scalars of their rounds, and their ends."""

    package: ClassVar[str]
    install: ClassVar[str]

    def __init__(self) -> None:
        self.open: dict[str, Any] = {}

    @abstractmethod
    def begin(self, label: str, directory: Path, config: dict[str, Any]) -> Any:
        """Begin a run, and return the tracker's handle of it."""

    @abstractmethod
    def log(self, run: Any, round_number: int, values: Mapping[str, float]) -> None:
        """Log the scalars of a round of a run, as :meth:`begin` returned it."""

    @abstractmethod
    def end(self, run: Any, summary: Mapping[str, float]) -> None:
        """End a run with its final and best accuracy by rule."""

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        """Begin a run."""
        self.open[label] = self.begin(label, directory, flat(read_config(directory / "config.toml")))

    def round(self, label: str, record: RoundRecord) -> None:
        """Log the scalars of a round."""
        self.log(self.open[label], record.round, scalars(record))

    def finished(self, label: str, run: Run) -> None:
        """End a run; one that was carried out in another process is logged as a whole."""
        if label not in self.open:
            self.started(label, run.last_round, 0, run.directory)
            for record in run.rounds:
                self.round(label, record)
        figures = run.outcome.accuracy.items()
        summary = {f"{name}/{rule}": getattr(part, name) for rule, part in figures for name in ("final", "best")}
        self.end(self.open.pop(label), summary)


def scalars(record: RoundRecord) -> dict[str, float]:
    """Return the finite scalars of a round by name, such as ``accuracy/head`` or ``loss/total``."""
    values: dict[str, Any] = {}
    for part in SCORED:
        if scores := getattr(record, part):
            values |= {f"{part}/{rule}": weighted for rule, weighted in scores.weighted.items()}
    if record.accuracy:
        values |= {f"client_mean/{rule}": mean for rule, (mean, _) in record.accuracy.spreads.items()}
    values |= {f"loss/{term}": value for term, value in record.losses.items()}
    values |= {f"bytes/{way}": sent for way, sent in record.bytes.items()}
    values |= {"seconds/total": record.seconds["total"], "refused": len(record.refused)}
    values |= {f"diagnostics/{name}": value for name, value in record.diagnostics.items()}
    numbers = {n: v for n, v in values.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


class TensorBoard(Tracker):
    """Event files in the run directory, below ``tensorboard``."""

    package = "tensorboard"
    install = "'protofed[tensorboard]'"

    def begin(self, label: str, directory: Path, config: dict[str, Any]) -> Any:
        """Open the event file of a run."""
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(directory / "tensorboard"))
        writer.add_text("config", "\n".join(f"    {name} = {value!r}" for name, value in config.items()))
        return writer

    def log(self, run: Any, round_number: int, values: Mapping[str, float]) -> None:
        """Write the scalars of a round at once."""
        for name, value in values.items():
            run.add_scalar(name, value, round_number)
        run.flush()

    def end(self, run: Any, summary: Mapping[str, float]) -> None:
        """Close the event file."""
        run.close()


class WandB(Tracker):
    """Weights & Biases, offline in the run directory unless ``WANDB_MODE`` says otherwise."""

    package = "wandb"
    install = "wandb"

    def begin(self, label: str, directory: Path, config: dict[str, Any]) -> Any:
        """Begin a run."""
        import wandb

        return wandb.init(
            project=os.environ.get("WANDB_PROJECT", "protofed"),
            name=label,
            config=config,
            dir=str(directory),
            mode=os.environ.get("WANDB_MODE", "offline"),
            reinit="create_new",
        )

    def log(self, run: Any, round_number: int, values: Mapping[str, float]) -> None:
        """Log the scalars of a round."""
        run.log(dict(values), step=round_number)

    def end(self, run: Any, summary: Mapping[str, float]) -> None:
        """End a run."""
        run.summary.update(dict(summary))
        run.finish()


class MLflow(Tracker):
    """MLflow, in the database ``mlflow.db`` of this folder unless ``MLFLOW_TRACKING_URI`` says otherwise."""

    package = "mlflow"
    install = "mlflow"

    def begin(self, label: str, directory: Path, config: dict[str, Any]) -> Any:
        """Begin a run with the configuration as its parameters."""
        from mlflow import MlflowClient

        client = MlflowClient(os.environ.get("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db"))
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "protofed")
        found = client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else client.create_experiment(name)
        run = client.create_run(experiment, run_name=label).info.run_id
        for option, value in config.items():
            client.log_param(run, option, str(value)[:500])
        return client, run

    def log(self, run: Any, round_number: int, values: Mapping[str, float]) -> None:
        """Log the scalars of a round."""
        client, number = run
        for name, value in values.items():
            client.log_metric(number, name, value, step=round_number)

    def end(self, run: Any, summary: Mapping[str, float]) -> None:
        """End a run."""
        client, number = run
        for name, value in summary.items():
            client.log_metric(number, name, value)
        client.set_terminated(number)


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WandB, "mlflow": MLflow}


def trackers(asked: Iterable[str | Progress]) -> list[Progress]:
    """Return the trackers that are given or named, the latter with their packages installed."""
    found: list[Progress] = []
    for name in asked:
        if isinstance(name, Progress):
            found.append(name)
            continue
        if name not in TRACKERS:
            raise ConfigError(unknown_name("tracker", name, TRACKERS))
        kind = TRACKERS[name]
        if find_spec(kind.package) is None:
            raise ConfigError(f"--track {name} needs {kind.package}: pip install {kind.install}")
        found.append(kind())
    return found
