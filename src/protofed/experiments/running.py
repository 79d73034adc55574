"""Running one experiment in its directory."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import protofed
from protofed import numerics
from protofed.analysis.summary import summarise
from protofed.experiments.assemble import assemble, describe_clients
from protofed.experiments.config import Experiment, Tree
from protofed.experiments.memory import PeakMemory
from protofed.experiments.rundir import RunDirectory
from protofed.experiments.workshop import device_of
from protofed.federation import Federation


class Progress:
    """What a run tells while it goes on; the default is silent."""

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        """A run of ``rounds`` rounds begins, or goes on after ``done`` of them."""

    def round(self, label: str, record: Mapping[str, Any]) -> None:
        """A round is over; ``record`` is its line of ``rounds.jsonl``."""

    def finished(self, label: str, run: Run) -> None:
        """A run is complete."""


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        directory: Where its files are.
        summary: The contents of ``summary.json``.
        rounds: The lines of ``rounds.jsonl``.
    """

    directory: Path
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.directory / "report.html"


def run_experiment(
    experiment: Experiment,
    directory: Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    label: str = "",
    report: bool = True,
) -> Run:
    """Run one experiment in ``directory``, or return it if it is there already and ``resume`` is set."""
    files = RunDirectory(directory)

    def begin() -> tuple[Federation, Tree]:
        federation, federated = assemble(experiment, bfloat16=files.bfloat16())
        return federation, describe_clients(federation, federated)

    return conduct(experiment, files, begin, resume=resume, progress=progress, label=label, report=report)


def conduct(
    experiment: Experiment,
    files: RunDirectory,
    begin: Callable[[], tuple[Federation, Tree]],
    *,
    resume: bool = False,
    progress: Progress | None = None,
    label: str = "",
    report: bool = True,
) -> Run:
    """Run a federation from its last checkpoint to its end, wherever its clients are.

    Args:
        experiment: What is run.
        files: Where to; a run that is complete there is returned.
        begin: Returns the federation and what is known of its clients.
        resume: Whether ``files`` may hold a part of this run.
        progress: Is told what happens.
        label: What ``progress`` calls the run.
        report: Whether to write the HTML report.

    Raises:
        ProtofedError: For anything wrong with the experiment or the directory; FederationError if clients are gone.
    """
    progress = progress or Progress()
    label = label or experiment.method
    if not files.finished:
        numerics.warn_if_unrepeatable()
        memory = PeakMemory(device_of(experiment))
        federation, description = begin()
        with closing(federation.executor):
            files.open(experiment, resume=resume)
            files.write_federation(description)
            rounds = files.restore(federation)
            progress.started(label, experiment.rounds, federation.round, files.path)
            for record in federation.run():
                rounds.append(files.add_round(record, federation, experiment.checkpoint.every))
                progress.round(label, rounds[-1])
            files.finish(federation, _summary(experiment, rounds, federation, memory.bytes()))
    else:
        files.open(experiment, resume=resume)
    result = Run(files.path, files.summary(), files.rounds())
    if report:
        write_report([files.path], result.report)
    progress.finished(label, result)
    return result


def _summary(
    experiment: Experiment, rounds: Sequence[dict[str, Any]], federation: Federation, memory: int
) -> dict[str, Any]:
    device = device_of(experiment)
    return {
        "protofed": protofed.__version__,
        "recipe": experiment.recipe,
        "method": experiment.method,
        "exchanges": federation.method.exchanges,
        "seed": experiment.seed,
        "clients": len(federation.names),
        **summarise(rounds),
        "peak_memory_bytes": memory,
        "environment": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "processor": platform.processor() or platform.machine(),
            **numerics.facts(),
            **federation.executor.description(),
        },
    }


def write_report(directories: Sequence[Path], out: Path) -> None:
    """Write the HTML report of runs or comparisons; matplotlib is imported only when one is due."""
    from protofed.analysis import report

    report.write_report(list(directories), out)
