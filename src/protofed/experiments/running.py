"""Execution of one experiment in its run directory."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import torch

import protofed
from protofed.compute import numerics
from protofed.config.schema import Experiment, Tree
from protofed.experiments.assemble import assemble
from protofed.experiments.description import describe_clients
from protofed.experiments.ending import describe_models, forgotten, list_left_out, without
from protofed.experiments.executors import threads_of
from protofed.experiments.hardware import Hardware
from protofed.experiments.loading import load_data
from protofed.experiments.memory import PeakMemory
from protofed.experiments.rundir import RunDirectory
from protofed.methods import Method
from protofed.rounds.loop import Federation
from protofed.runs.loading import load_run
from protofed.runs.metrics import Metrics
from protofed.runs.records import RoundRecord
from protofed.runs.rules import main_rule
from protofed.runs.run import Run
from protofed.runs.summary import Outcome, Summary
from protofed.storage.files import remove_partial

Report = Callable[[Sequence[Path], Path], object]
"""Writes a report on the runs below some directories, like :func:`protofed.analysis.write_report`."""
Measure = Callable[[Run], Metrics]
"""Computes and stores the metrics of a finished run, like :func:`protofed.trained.metrics.measure`."""


class Progress:
    """Receiver of progress reports; this base class passes them on to others, if there are any."""

    receivers: Sequence[Progress] = ()

    @classmethod
    def share(cls, *receivers: Progress) -> Progress:
        """Return one that passes reports on to several others."""
        found = cls()
        found.receivers = receivers
        return found

    def planned(self, runs: int, jobs: int = 1) -> None:
        """Report that several runs follow, of which ``jobs`` are carried out at a time."""
        self._pass_on("planned", runs, jobs)

    def advanced(self) -> None:
        """Report the end of one of the runs that were planned."""
        self._pass_on("advanced")

    def started(self, label: str, rounds: int, done: int, directory: Path) -> None:
        """Report the start of a run, or its resumption."""
        self._pass_on("started", label, rounds, done, directory)

    def round(self, label: str, record: RoundRecord) -> None:
        """Report the end of a round."""
        self._pass_on("round", label, record)

    def finished(self, label: str, run: Run) -> None:
        """Report the end of a run."""
        self._pass_on("finished", label, run)

    def _pass_on(self, report: str, *about: object) -> None:
        for receiver in self.receivers:
            getattr(receiver, report)(*about)


def run_experiment(
    experiment: Experiment,
    directory: Path | RunDirectory,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    label: str = "",
    report: Report | None = None,
    measure: Measure | None = None,
) -> Run:
    """Run one experiment.

    Args:
        directory: A complete run in it is returned if ``resume`` is set.
        resume: ``directory`` may contain a part of this run.
        label: Name for ``progress``; the method's name by default.
    """
    files = directory if isinstance(directory, RunDirectory) else RunDirectory(directory)

    def begin(hardware: Hardware) -> tuple[Federation, Tree]:
        gone = forgotten(files.path)
        data = load_data(experiment).without(gone)
        federation, federated = assemble(without(experiment, gone), data, files.bfloat16(), hardware)
        told = describe_clients(federation, federated) | {"models": describe_models(experiment, federated)}
        return federation, told | ({"left_out": list_left_out(gone)} if gone else {})

    return run_federation(
        experiment, files, begin, resume=resume, progress=progress, label=label, report=report, measure=measure
    )


def run_federation(
    experiment: Experiment,
    files: RunDirectory,
    begin: Callable[[Hardware], tuple[Federation, Tree]],
    *,
    resume: bool = False,
    progress: Progress | None = None,
    label: str = "",
    report: Report | None = None,
    measure: Measure | None = None,
) -> Run:
    """Run a federation, with local or remote clients, from its last checkpoint to its end.

    Args:
        begin: Builds the federation and the description of its clients for the hardware of this process.

    Raises:
        ProtofedError: FederationError if too few clients remain.
    """
    progress = progress or Progress()
    label = label or experiment.method
    if not files.finished or (resume and files.differs(experiment)):
        hardware = Hardware.of(experiment.execution)
        numerics.warn_if_unrepeatable()
        memory = PeakMemory(hardware.device)
        federation, description = begin(hardware)
        threads = experiment.execution.threads or threads_of(federation.method)
        with closing(federation.executor), _threads(threads):
            files.check_room(federation, experiment.checkpoint.every)
            with files.claim(experiment, resume=resume), files.saving:
                files.check_data(description)
                rounds = files.restore(federation)
                files.write_federation(description)
                progress.started(label, experiment.rounds, federation.round, files.path)
                remaining = federation.run()
                while not federation.evaluation.has_stalled(rounds) and (record := next(remaining, None)):
                    rounds.append(record)
                    files.add_round(record, federation, experiment.checkpoint.every)
                    progress.round(label, record)
                device = hardware.device
                machine = {
                    "torch": torch.__version__,
                    "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
                    "processor": platform.processor() or platform.machine(),
                    **numerics.facts(),
                    **federation.executor.description(),
                }
                clients, method = len(federation.names), federation.method
                files.finish(federation, summary_of(experiment, method, rounds, clients, machine, memory.bytes()))
    else:
        files.open(experiment, resume=resume)
        remove_partial(files.path)  # of a report during which a process was killed
    result = load_run(files.path)
    here = (files.path / "clients").is_dir()  # models at the nodes of a network are measured there
    if experiment.evaluation.metrics and measure and here and result.measured is None:
        result = replace(result, measured=measure(result))
    if report:
        report([files.path], result.report)
    progress.finished(label, result)
    return result


@contextmanager
def _threads(number: int) -> Iterator[None]:
    """Compute by so many threads inside the block, if any."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def summary_of(
    experiment: Experiment,
    method: Method,
    rounds: Sequence[RoundRecord],
    clients: int,
    environment: Mapping[str, str | int],
    memory: int | None = None,
) -> Summary:
    """Return the summary of a run after its last round, with its peak memory in bytes."""
    return Summary(
        protofed=protofed.__version__,
        recipe=experiment.recipe,
        method=experiment.method,
        exchanges=method.declared.exchanges,
        seed=experiment.seed,
        clients=clients,
        outcome=Outcome.of(rounds),
        main_rule=main_rule(method.rules, experiment.evaluation.rule),
        privacy=next((r.privacy for r in reversed(rounds) if r.privacy), None),
        peak_memory_bytes=memory,
        environment={"python": platform.python_version(), **environment},
    )
