"""Partitions made by the partitioners of ``flwr-datasets``: iid and dirichlet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from protofed.data.partition import Partition, Request, Share, names, partitions, require, require_clients
from protofed.data.quiet import quiet
from protofed.errors import ConfigError
from protofed.options import NoOptions, Options, option
from protofed.seeding import derive, generator

_RESTARTS = 5  # the Dirichlet partitioner gives up after eleven draws; small data sets may need a few more


@dataclass(frozen=True)
class DirichletOptions(Options):
    """Practical heterogeneity: per class, the clients' shares are drawn from Dir(alpha)."""

    alpha: float = option(0.1, "concentration of Dir(alpha); small = few classes per client", above=0)
    min_size: int = option(10, "fewest samples of a client; shares are drawn again until all have them", least=0)
    self_balancing: bool = option(False, "a client with more than the average gets no further class")


def iid(request: Request, options: NoOptions) -> list[Share]:
    """Return random shares of equal size (sizes differ by at most one).

    Args:
        request: Labels to divide and number of clients.
        options: No options.
    """

    def build(seed: int) -> Any:
        from flwr_datasets.partitioner import IidPartitioner

        return IidPartitioner(request.clients)

    return run_partitioner(request, build)


def dirichlet(request: Request, options: DirichletOptions) -> list[Share]:
    """Return shares with Dir(alpha) label skew.

    Args:
        request: Labels to divide and number of clients.
        options: Concentration and smallest client.

    Raises:
        ConfigError: If an option is out of range, or ``alpha`` is so small that not every client gets
            ``min_size`` samples.
    """
    M, least = request.clients, options.min_size
    require(
        M * least <= len(request.y),
        f"partition.min_size = {least} for {M} clients needs {M * least} samples, but there are "
        f"{len(request.y)}: lower partition.min_size or data.clients",
    )

    def build(seed: int) -> Any:
        from flwr_datasets.partitioner import DirichletPartitioner

        return DirichletPartitioner(
            num_partitions=M,
            partition_by="label",
            alpha=float(options.alpha),
            min_partition_size=least,
            self_balancing=options.self_balancing,
            seed=seed,
        )

    for restart in range(_RESTARTS):
        try:
            return run_partitioner(request, build, restart)
        except ValueError:
            continue
    raise ConfigError(
        f"partition 'dirichlet': with alpha = {options.alpha:g}, not all {M} clients get {least} "
        "samples: raise partition.alpha, or lower partition.min_size or data.clients"
    )


def run_partitioner(request: Request, build: Callable[[int], Any], restart: int = 0) -> list[Share]:
    """Run a partitioner of ``flwr-datasets`` on a table that holds only labels and positions.

    Args:
        request: Labels to divide and number of clients.
        build: Function from a 32-bit seed to a partitioner of the column ``label``.
        restart: Number of the attempt; each gives different random shares.

    Raises:
        ConfigError: If there are fewer samples than clients.
        ValueError: If the partitioner rejects the data or its options.
    """
    import datasets as hf

    require_clients(request)
    scope = ("partition", restart) if restart else ("partition",)
    # The partitioners split each class in the order given, so the order must be random.
    order = torch.randperm(len(request.y), generator=generator(request.seed, *scope, "order"))
    with quiet():
        partitioner = build(derive(request.seed, *scope) % 2**32)
        partitioner.dataset = hf.Dataset.from_dict({"label": request.y[order].tolist(), "index": order.tolist()})
        parts = [partitioner.load_partition(i).with_format("numpy")[:]["index"] for i in range(request.clients)]
    return [
        Share(name, torch.as_tensor(part).long().sort().values)
        for name, part in zip(names(request.clients), parts, strict=True)
    ]


partitions.register("iid")(Partition("equally large random shares", iid))
partitions.register("dirichlet")(
    Partition("label skew: shares of each class drawn from Dir(alpha)", dirichlet, DirichletOptions)
)
