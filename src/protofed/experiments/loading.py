"""Loading of the data that a configuration names."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from protofed import data
from protofed.compute import numerics
from protofed.config.schema import Experiment, load_recipe, recipes
from protofed.errors import MissingDataError
from protofed.experiments.encoding import encode
from protofed.models.encoders import EncoderOptions
from protofed.options import build_options, plain
from protofed.samples import FederatedData


def load_data(experiment: Experiment) -> FederatedData:
    """Return the clients' data; the last data loaded are cached while their files stay as they are.

    A comparison loads them once.
    """
    numerics.prepare()  # encoders compute
    parts = experiment.partition, plain(experiment.partition_options), experiment.seed
    rest = plain(experiment.shift), plain(experiment.encoder), experiment.execution.weights_dir
    stamps = _stamps(experiment.data.path)
    try:
        return _load_data(json.dumps((plain(experiment.data), *parts, *rest, stamps), sort_keys=True))
    except MissingDataError as error:
        known = load_recipe(experiment.recipe) if experiment.recipe in recipes() else {}
        if known.get("data", {}).get("path") != experiment.data.path:
            raise
        raise MissingDataError(f"{error} (recipe {experiment.recipe}: {known['summary']})") from None


def _stamps(path: str) -> list[tuple[str, int, int]]:
    """Return name, size and time of the last change of all files at or below a path; ``[]`` without one."""
    if not path:
        return []
    root = Path(path).expanduser()
    files = sorted(root.rglob("*")) if root.is_dir() else [root]
    found = ((file, file.stat()) for file in files if file.is_file())
    return [(str(file), stat.st_size, stat.st_mtime_ns) for file, stat in found]


@lru_cache(maxsize=2)
def _load_data(key: str) -> FederatedData:
    options, partition, partition_options, seed, shift, encoder, weights_dir, _ = json.loads(key)
    kind = data.partitions.get(partition)
    federated = data.load(
        build_options(data.DataOptions, {k: v for k, v in options.items() if v is not None}, "data"),
        partition,
        build_options(kind.Options, partition_options, "partition"),
        seed,
        build_options(data.ShiftOptions, shift, "shift"),
    )
    return encode(federated, build_options(EncoderOptions, encoder, "encoder"), weights_dir)
