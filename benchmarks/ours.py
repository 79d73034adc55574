"""Rounds of this package's engine, run one at a time."""

from __future__ import annotations

from contextlib import ExitStack, closing
from dataclasses import replace

from benchmarks.timing import Variant
from protofed.compute.numerics import cores
from protofed.config.schema import Experiment
from protofed.experiments.assemble import assemble
from protofed.experiments.hardware import Hardware
from protofed.runs.records import RoundRecord
from protofed.samples import FederatedData

SEQUENTIAL = "sequential"
WORKERS = "workers"
FUSED = "fused"


class Rounds:
    """A federation that runs one round per call.

    Args:
        like: Another federation, from which to copy the choice of models computed in bfloat16.
        federated: The clients' data; loaded according to the experiment by default.
    """

    def __init__(
        self,
        experiment: Experiment,
        hardware: Hardware,
        like: Rounds | None = None,
        federated: FederatedData | None = None,
    ) -> None:
        known = like.bfloat16 if like else None
        self.federation, self.federated = assemble(experiment, federated, bfloat16=known, hardware=hardware)
        self._records = self.federation.run()

    @property
    def bfloat16(self) -> list[str]:
        """The kinds of models that are computed in bfloat16."""
        return self.federation.executor.clients.in_bfloat16

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
    experiment: Experiment, hardware: Hardware, counts: list[int], processes: int, stack: ExitStack
) -> tuple[Rounds, list[Variant]]:
    """Return the executors to time: ``sequential``, and ``fused`` on a GPU or ``workers`` on CPUs.

    Args:
        experiment: With the executor ``sequential`` and the total number of rounds to run.

    Returns:
        The sequential federation and all variants.
    """
    ours = stack.enter_context(closing(Rounds(experiment, hardware)))
    variants = [ours.variant(SEQUENTIAL, threads) for threads in counts]
    processes = processes or cores()
    if hardware.cuda:
        execution, name = replace(experiment.execution, executor="fused"), FUSED
    elif processes > 1:
        execution = replace(experiment.execution, executor="workers", workers=processes)
        name = f"{WORKERS} ({processes})"
    else:
        return ours, variants
    other = stack.enter_context(closing(Rounds(replace(experiment, execution=execution), hardware, like=ours)))
    threads = other.federation.executor.description().get("threads", counts[0])
    return ours, [*variants, other.variant(name, int(threads))]
