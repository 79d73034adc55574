"""Loading of the data that a configuration names."""

from __future__ import annotations

import json
from functools import lru_cache

from protofed import data
from protofed.experiments.config import Experiment
from protofed.options import build_options, plain
from protofed.samples import FederatedData


def load_data(experiment: Experiment) -> FederatedData:
    """Return the clients' data; the last data loaded are cached, so that a comparison loads them once."""
    key = (plain(experiment.data), experiment.partition, plain(experiment.partition_options), experiment.seed)
    return _load_data(json.dumps(key, sort_keys=True))


@lru_cache(maxsize=2)
def _load_data(key: str) -> FederatedData:
    options, partition, partition_options, seed = json.loads(key)
    kind = data.partitions.get(partition)
    return data.load(
        build_options(data.DataOptions, {k: v for k, v in options.items() if v is not None}, "data"),
        partition,
        build_options(kind.Options, partition_options, "partition"),
        seed,
    )
