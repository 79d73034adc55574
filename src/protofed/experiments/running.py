"""Execution of one experiment in its run directory."""

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
from protofed.experiments.assemble import assemble
from protofed.experiments.config import Experiment, Tree
from protofed.experiments.description import describe_clients
from protofed.experiments.hardware import Hardware
from protofed.experiments.memory import PeakMemory
from protofed.experiments.rundir import RunDirectory
from protofed.federation import Federation
from protofed.runs import Outcome, RoundRecord, Summary

Report = Callable[[Sequence[Path], Path], object]
"""Writes a report on the runs below some directories, like :func:`protofed.analysis.write_report`."""


class Progress:
    """Receiver of progress reports; this base class ignores them."""

    def planned(self, runs: int) -> None:
        """Report that many runs follow, which are to be counted rather than shown one by one.

        Args:
            runs: Their number.
        """

    def advanced(self) -> None:
        """Report the end of one of the runs that were planned."""

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        """Report the start of a run, or its resumption.

        Args:
            label: Name of the run.
            rounds: Total number of rounds.
            done: Number of rounds already completed.
            directory: The run directory.
        """

    def round(self, label: str, record: Mapping[str, Any]) -> None:
        """Report the end of a round.

        Args:
            label: Name of the run.
            record: The round's line of ``rounds.jsonl``.
        """

    def finished(self, label: str, run: Run) -> None:
        """Report the end of a run.

        Args:
            label: Name of the run.
            run: The finished run.
        """


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        directory: The run directory.
        summary: The contents of ``summary.json``.
        rounds: The lines of ``rounds.jsonl``.
    """

    directory: Path
    summary: dict[str, Any]
    rounds: list[dict[str, Any]]

    @property
    def report(self) -> Path:
        """Path of the HTML report."""
        return self.directory / "report.html"


def run_experiment(
    experiment: Experiment,
    directory: Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    label: str = "",
    report: Report | None = None,
) -> Run:
    """Run one experiment.

    Args:
        experiment: The experiment.
        directory: The run directory; a complete run in it is returned if ``resume`` is set.
        resume: Whether ``directory`` may contain a part of this run.
        progress: Receives progress reports.
        label: Name of the run for ``progress``; the method's name by default.
        report: Writes the HTML report; None for no report.

    Returns:
        The finished run.

    Raises:
        ProtofedError: As :func:`run_federation`.
    """
    files = RunDirectory(directory)

    def begin(hardware: Hardware) -> tuple[Federation, Tree]:
        federation, federated = assemble(experiment, bfloat16=files.bfloat16(), hardware=hardware)
        return federation, describe_clients(federation, federated)

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
        experiment: The experiment.
        files: The run directory; a complete run in it is returned if ``resume`` is set.
        begin: Builds the federation for the hardware of this process; also returns the description of its clients.
        resume: Whether ``files`` may contain a part of this run.
        progress: Receives progress reports.
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
    if not files.finished:
        numerics.warn_if_unrepeatable()
        hardware = Hardware.of(experiment.execution)
        memory = PeakMemory(hardware.device)
        federation, description = begin(hardware)
        with closing(federation.executor):
            files.open(experiment, resume=resume)
            files.write_federation(description)
            rounds = files.restore(federation)
            progress.started(label, experiment.rounds, federation.round, files.path)
            for record in federation.run():
                rounds.append(record)
                progress.round(label, files.add_round(record, federation, experiment.checkpoint.every))
            files.finish(federation, _summary(experiment, hardware.device, rounds, federation, memory.bytes()))
    else:
        files.open(experiment, resume=resume)
    result = Run(files.path, files.summary().to_dict(), [record.to_dict() for record in files.rounds()])
    if report:
        report([files.path], result.report)
    progress.finished(label, result)
    return result


def _summary(
    experiment: Experiment,
    device: torch.device,
    rounds: Sequence[RoundRecord],
    federation: Federation,
    memory: int,
) -> Summary:
    """Return the summary of a run after its last round."""
    return Summary(
        protofed=protofed.__version__,
        recipe=experiment.recipe,
        method=experiment.method,
        exchanges=federation.method.exchanges,
        seed=experiment.seed,
        clients=len(federation.names),
        outcome=Outcome.of(rounds),
        main_rule=federation.main_rule,
        peak_memory_bytes=memory,
        environment={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
            "processor": platform.processor() or platform.machine(),
            **numerics.facts(),
            **federation.executor.description(),
        },
    )
