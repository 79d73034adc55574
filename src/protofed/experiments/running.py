"""Execution of one experiment in its run directory."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import protofed
from protofed.compute import numerics
from protofed.config.schema import Experiment, Tree
from protofed.errors import CheckpointError
from protofed.experiments import shown
from protofed.experiments.assemble import assemble
from protofed.experiments.description import describe_clients
from protofed.experiments.ending import describe_models, forgotten, left_out, without
from protofed.experiments.hardware import Hardware
from protofed.experiments.loading import load_data
from protofed.experiments.memory import PeakMemory
from protofed.experiments.rundir import RunDirectory
from protofed.rounds import Federation
from protofed.runs import METRICS, Metrics, Outcome, RoundRecord, RunData, Summary, read_comparison
from protofed.runs import load_run as load_run_data

if TYPE_CHECKING:
    from pandas import DataFrame

    from protofed.experiments.trained import Prediction, Ruled, TrainedClient

Report = Callable[[Sequence[Path], Path], object]
"""Writes a report on the runs below some directories, like :func:`protofed.analysis.write_report`."""


class Progress:
    """Receiver of progress reports; this base class ignores them."""

    def planned(self, runs: int) -> None:
        """Report that many runs follow, which are to be counted rather than shown one by one."""

    def advanced(self) -> None:
        """Report the end of one of the runs that were planned."""

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        """Report the start of a run, or its resumption.

        Args:
            done: Number of rounds already completed.
        """

    def round(self, label: str, record: Mapping[str, Any]) -> None:
        """Report the end of a round.

        Args:
            record: The round's line of ``rounds.jsonl``.
        """

    def finished(self, label: str, run: Run) -> None:
        """Report the end of a run."""


@dataclass(frozen=True, repr=False)
class Run:
    """A finished run.

    Attributes:
        directory: The run directory.
        summary: The contents of ``summary.json``.
        rounds: The lines of ``rounds.jsonl``.
        trusted: Whether code that the run's configuration names may be imported; a run of this process did so.
    """

    directory: Path
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]
    trusted: bool = True

    @property
    def report(self) -> Path:
        """Path of the HTML report."""
        return self.directory / "report.html"

    @cached_property
    def data(self) -> RunData:
        """The run as its directory tells it, with its clients and classes."""
        return load_run_data(self.directory)

    @property
    def clients(self) -> list[str]:
        """Names of the clients."""
        return [client.name for client in self.data.clients]

    @property
    def class_names(self) -> list[str]:
        """Names of the classes."""
        return self.data.class_names

    # Its models.

    def client(self, name: str) -> TrainedClient:
        """Return a client as it was after the last round, ready to classify.

        Raises:
            ProtofedError: As :func:`~protofed.experiments.trained.open_client`.
        """
        from protofed.experiments.trained import open_client

        return open_client(self.data, name, self.trusted)

    def model(self, client: str, rule: str = "") -> Ruled:
        """Return a client's model with its preprocessing, in eval mode: ``(n, *input_shape)`` to ``(n, K)`` scores.

        Their softmax are the probabilities of :meth:`predict` by the same rule.

        Args:
            rule: Inference rule, as for :meth:`predict`.

        Raises:
            ProtofedError: As :meth:`client`; or if there is no such rule, or the method defines no scores of it.
        """
        return self.client(client).model(rule)

    def predict(self, client: str, samples: Any, rule: str = "", resize: int | None = None) -> Prediction:
        """Classify samples with a client's model.

        Args:
            samples: An array or tensor with or without a dimension of samples, a pandas table, pictures of PIL, or
                paths of images and tables; see :func:`~protofed.experiments.inputs.as_samples`.
            rule: Inference rule, e.g. ``head`` or ``global``; ``prototypes`` for the nearest prototype, ``""`` for
                the client's own (see :meth:`~protofed.experiments.trained.TrainedClient.rule`).
            resize: Side in pixels to which pictures are scaled and centre-cropped; None for that of the run.

        Raises:
            ProtofedError: As :meth:`client`; or if the samples do not suit the model, or there is no such rule.
        """
        from protofed.experiments.inputs import as_samples

        trained = self.client(client)
        side = trained.resize if resize is None else resize
        return trained.predict(as_samples(samples, trained, side), rule)

    def export(
        self, client: str, path: str | Path, format: str = "", rule: str = "", samples: Sequence[str | Path] = ()
    ) -> Path:
        """Write a client's model with its preprocessing, a rule and the names of the classes, and check the file.

        Args:
            format: ``onnx``, ``torch_export`` or ``safetensors``; "" to tell by the file's suffix.
            rule: Inference rule, as for :meth:`predict`.
            samples: Files with samples on which to check; by default the client's own test samples, if the run's
                data are at hand.

        Raises:
            ProtofedError: As :func:`~protofed.experiments.exporting.export`.
        """
        from protofed.experiments.exporting import export

        files = [Path(file) for file in samples]
        return export(self.data, self.client(client), Path(path), format, rule, files, self.trusted).path

    # Its numbers.

    def metrics(self, rule: str = "") -> Metrics:
        """Return balanced accuracy, macro F1, AUROC, recall per class and confusion matrices, by scikit-learn.

        They are those of the final models on their clients' own test samples: from ``metrics.json`` if they are
        there, or else computed, for which the run's data must be at hand.

        Args:
            rule: Inference rule; ``prototypes`` for the nearest prototype, "" for each client's own.

        Raises:
            ProtofedError: As :func:`~protofed.experiments.metrics.compute`.
        """
        stored = self.data.metrics
        mixed = stored is not None and any(each.rule for each in stored.clients.values())
        if stored is not None and stored.rule == (rule or self.data.main_rule) and not (rule and mixed):
            return stored
        from protofed.experiments.metrics import compute

        return compute(self.data, rule, self.trusted)

    def to_frame(self) -> DataFrame:
        """Return a pandas table with one row per round: accuracies by rule, losses, bytes, seconds, refusals."""
        from protofed.experiments.frames import rounds_frame

        return rounds_frame(self.data)

    def clients_frame(self) -> DataFrame:
        """Return a pandas table with one row per client: its model, its samples, its last accuracy by each rule."""
        from protofed.experiments.frames import clients_frame

        return clients_frame(self.data)

    def __repr__(self) -> str:
        """Return the run in one line."""
        return shown.run_line(self.directory, self.summary)

    def _repr_html_(self) -> str:
        """Return a table and a small plot, for notebooks."""
        return shown.run_html(self.directory, self.summary, self.rounds)


def load_run(directory: str | Path, trust_code: bool = False) -> Run:
    """Return a finished run from its directory.

    Args:
        trust_code: Whether code that the run's configuration names may be imported for its models.

    Raises:
        CheckpointError: If there is no finished run, or one of its files is damaged.
    """
    path = Path(directory)
    if (path / "comparison.json").is_file():
        first = next(iter(read_comparison(path / "comparison.json").runs), None)
        example = f", such as {path / first.directory}" if first else ""
        raise CheckpointError(f"{path}: holds a comparison: load one of its runs{example}")
    data = load_run_data(path)
    if data.summary is None:
        raise CheckpointError(f"{path}: the run has not finished: continue it with --resume")
    return Run(path, data.summary.to_dict(), [record.to_dict() for record in data.rounds], trust_code)


def run_experiment(
    experiment: Experiment,
    directory: Path | RunDirectory,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    label: str = "",
    report: Report | None = None,
) -> Run:
    """Run one experiment.

    Args:
        directory: The run directory; a complete run in it is returned if ``resume`` is set.
        resume: Whether ``directory`` may contain a part of this run.
        label: Name of the run for ``progress``; the method's name by default.
        report: Writes the HTML report; None for no report.

    Returns:
        The finished run.

    Raises:
        ProtofedError: As :func:`run_federation`.
    """
    files = directory if isinstance(directory, RunDirectory) else RunDirectory(directory)

    def begin(hardware: Hardware) -> tuple[Federation, Tree]:
        gone = forgotten(files.path)
        data = load_data(experiment).without(gone)
        federation, federated = assemble(without(experiment, gone), data, files.bfloat16(), hardware)
        told = describe_clients(federation, federated) | {"models": describe_models(experiment, federated)}
        return federation, told | ({"left_out": left_out(gone)} if gone else {})

    return run_federation(experiment, files, begin, resume=resume, progress=progress, label=label, report=report)


def run_federation(
    experiment: Experiment,
    files: RunDirectory,
    begin: Callable[[Hardware], tuple[Federation, Tree]],
    *,
    resume: bool = False,
    progress: Progress | None = None,
    label: str = "",
    report: Report | None = None,
) -> Run:
    """Run a federation, with local or remote clients, from its last checkpoint to its end.

    Args:
        files: The run directory; a complete run in it is returned if ``resume`` is set.
        begin: Builds the federation for the hardware of this process; also returns the description of its clients.
        resume: Whether ``files`` may contain a part of this run.
        label: Name of the run for ``progress``; the method's name by default.
        report: Writes the HTML report; None for no report.

    Returns:
        The finished run.

    Raises:
        ProtofedError: If anything is wrong with the experiment or the directory; FederationError if too few clients
            remain.
    """
    progress = progress or Progress()
    label = label or experiment.method
    if not files.finished or (resume and files.changed(experiment)):
        hardware = Hardware.of(experiment.execution)
        numerics.warn_if_unrepeatable()
        memory = PeakMemory(hardware.device)
        federation, description = begin(hardware)
        with closing(federation.executor):
            files.check_room(federation, experiment.checkpoint.every)
            with files.claimed(experiment, resume=resume), files.saving:
                files.check_encoder(description)
                rounds = files.restore(federation)
                files.write_federation(description)
                progress.started(label, experiment.rounds, federation.round, files.path)
                remaining = federation.run()
                while not federation.evaluation.stalled(rounds) and (record := next(remaining, None)):
                    rounds.append(record)
                    progress.round(label, files.add_round(record, federation, experiment.checkpoint.every))
                files.finish(
                    federation, summary_of(experiment, hardware.device, rounds, federation, memory.bytes())
                )
    else:
        files.open(experiment, resume=resume)
    result = Run(files.path, files.summary().to_dict(), [record.to_dict() for record in files.rounds()])
    here = (files.path / "clients").is_dir()  # models at the nodes of a network are measured there
    if experiment.evaluation.metrics and here and not (files.path / METRICS).is_file():
        from protofed.experiments.metrics import store

        store(load_run_data(files.path), trust_code=True)
    if report:
        report([files.path], result.report)
    progress.finished(label, result)
    return result


def summary_of(
    experiment: Experiment,
    device: torch.device,
    rounds: Sequence[RoundRecord],
    federation: Federation,
    memory: int,
) -> Summary:
    """Return the summary of a run after its last round.

    Args:
        rounds: Records of all rounds.
        federation: The federation after the last round.
        memory: Peak memory in bytes.
    """
    return Summary(
        protofed=protofed.__version__,
        recipe=experiment.recipe,
        method=experiment.method,
        exchanges=federation.method.exchanges,
        seed=experiment.seed,
        clients=len(federation.names),
        outcome=Outcome.of(rounds),
        main_rule=federation.evaluation.main_rule,
        privacy=next((r.privacy for r in reversed(rounds) if r.privacy), None),
        peak_memory_bytes=memory,
        environment={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
            "processor": platform.processor() or platform.machine(),
            **numerics.facts(),
            **federation.executor.description(),
        },
    )
