"""Our own rounds, one at a time."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace

from protofed.benchmark.timing import Variant, cores
from protofed.experiments.assemble import assemble
from protofed.experiments.config import Experiment
from protofed.experiments.workshop import device_of
from protofed.federation import RoundRecord

SEQUENTIAL = "sequential"
WORKERS = "workers"
FUSED = "fused"


class Rounds:
    """A federation that runs a round when it is told to.

    Args:
        experiment: What to run.
        like: Takes over from another one for which models bfloat16 was found faster.

    Attributes:
        federation: The engine.
        federated: The clients' data, on the device.
    """

    def __init__(self, experiment: Experiment, like: Rounds | None = None) -> None:
        self.federation, self.federated = assemble(experiment, bfloat16=like.bfloat16 if like else None)
        self._records = self.federation.run()

    @property
    def bfloat16(self) -> list[str]:
        """Kinds of models whose layers are computed in bfloat16."""
        return [kind for kind, model in self.federation.executor.clients.models.items() if model.in_bfloat16]

    def run(self) -> RoundRecord:
        """Run the next round."""
        return next(self._records)

    def close(self) -> None:
        """End processes and remove files."""
        self.federation.executor.close()

    def variant(self, name: str, threads: int) -> Variant:
        """Return the next rounds as a variant to be timed."""
        return Variant(name, threads, lambda: None, self.run)


def our_variants(
    experiment: Experiment, counts: list[int], processes: int, stack: ExitStack
) -> tuple[Rounds, list[Variant]]:
    """Return our executors as variants (fused only on a GPU, workers only off it), and the sequential federation.

    Args:
        experiment: With as many rounds as will be run, and the executor ``sequential``.
        counts: Numbers of threads of the sequential executor.
        processes: Of the executor ``workers``, which share the cores; 0: one per core, 1: leave it out.
        stack: Closes what is opened here.
    """
    ours = stack.enter_context(closing(Rounds(experiment)))
    variants = [ours.variant(SEQUENTIAL, threads) for threads in counts]
    processes = processes or cores()
    if device_of(experiment).type == "cuda":
        execution, name = replace(experiment.execution, executor="fused"), FUSED
    elif processes > 1:
        execution = replace(experiment.execution, executor="workers", workers=processes)
        name = f"{WORKERS} ({processes})"
    else:
        return ours, variants
    other = stack.enter_context(closing(Rounds(replace(experiment, execution=execution), like=ours)))
    threads = other.federation.executor.description().get("threads", counts[0])
    return ours, [*variants, other.variant(name, int(threads))]
