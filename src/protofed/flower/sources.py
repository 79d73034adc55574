"""Where a node has its clients' data from: its own folder, or its share of a data set that is simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from protofed.data.federation import load_client
from protofed.errors import ConfigError
from protofed.experiments.assemble import load_data
from protofed.experiments.config import Experiment
from protofed.flower.messages import Description
from protofed.training import FederatedData


class Source(Protocol):
    """The clients of one node; equal sources have equal hashes."""

    def __hash__(self) -> int: ...

    def describe(self, experiment: Experiment) -> list[Description]:
        """Return what the server has to know of them."""
        ...

    def load(self, experiment: Experiment, name: str, classes: tuple[str, ...]) -> FederatedData:
        """Return a federation of this one client, with labels in the order of ``classes``."""
        ...


@dataclass(frozen=True)
class Folder:
    """One client, in a folder with ``train``, ``test`` and, if it likes, ``validation`` and ``client.toml``.

    Attributes:
        path: The folder.
        name: What the client is called.
    """

    path: Path
    name: str

    def describe(self, experiment: Experiment) -> list[Description]:
        """Return its description, with the classes it has."""
        federated, named = self._read(experiment, ())
        return [_description(federated, 0, self.name, named)]

    def load(self, experiment: Experiment, name: str, classes: tuple[str, ...]) -> FederatedData:
        """Return its samples."""
        if name != self.name:
            raise ConfigError(f"{self.path}: is the folder of client {self.name!r}, not of {name!r}")
        return self._read(experiment, classes)[0]

    def _read(self, experiment: Experiment, classes: tuple[str, ...]) -> tuple[FederatedData, bool]:
        federated, named = load_client(self.path, experiment.data, experiment.seed, classes)
        return replace(federated, clients=(replace(federated.clients[0], name=self.name),)), named


@dataclass(frozen=True)
class Share:
    """Clients ``index``, ``index + count``, … of the experiment's data: a node of a simulation."""

    index: int
    count: int

    def describe(self, experiment: Experiment) -> list[Description]:
        """Return the descriptions of this node's clients."""
        federated = load_data(experiment)
        return [
            _description(federated, place, federated.clients[place].name, named=True)
            for place in range(self.index, len(federated.clients), self.count)
        ]

    def load(self, experiment: Experiment, name: str, classes: tuple[str, ...]) -> FederatedData:
        """Return the samples of one of them."""
        federated = load_data(experiment)
        chosen = tuple(c for c in federated.clients if c.name == name)
        if not chosen:
            raise ConfigError(f"client {name!r} is not among the {len(federated.clients)} of the data here")
        return replace(federated, clients=chosen)


def source_of(node: Mapping[str, bool | float | int | str]) -> Source:
    """Return the source that a node's configuration names.

    Raises:
        ConfigError: If it names none.
    """
    if "client-dir" in node:
        path = Path(str(node["client-dir"])).expanduser()
        return Folder(path, str(node.get("client", path.name)))
    if "partition-id" in node and "num-partitions" in node:
        return Share(int(node["partition-id"]), int(node["num-partitions"]))
    raise ConfigError("the node has no data: start it with --node-config 'client-dir=\"FOLDER\"'")


def _description(federated: FederatedData, place: int, name: str, named: bool) -> Description:
    client, K = federated.clients[place], federated.num_classes
    return Description(
        name,
        federated.class_names,
        named,
        tuple(client.train.counts(K).tolist()),
        tuple(client.test.counts(K).tolist()),
        len(client.validation) if client.validation else 0,
        federated.input_shape,
        client.settings,
        place,
    )
