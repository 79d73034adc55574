"""Where a node has its clients' data from: its own folder, or its share of a data set that is simulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from protofed import claims
from protofed.data.federation import client_settings, load_client
from protofed.errors import ConfigError
from protofed.experiments.assemble import load_data
from protofed.experiments.config import Experiment
from protofed.experiments.workshop import check_trusted, counts_needed, is_code, recipe_names
from protofed.flower.messages import Description
from protofed.samples import FederatedData


class Source(Protocol):
    """The clients of one node; equal sources have equal hashes."""

    def __hash__(self) -> int: ...

    def describe(self, experiment: Experiment) -> list[Description]:
        """Return what the server has to know of them."""
        ...

    def load(self, experiment: Experiment, name: str, classes: tuple[str, ...]) -> FederatedData:
        """Return a federation of this one client, with labels in the order of ``classes``."""
        ...

    def counts(self, experiment: Experiment, name: str) -> str:
        """Return how much the client says of its numbers of samples, one of :data:`protofed.claims.COUNTS`."""
        ...


@dataclass(frozen=True)
class Folder:
    """One client, in a folder with ``train``, ``test`` and, if it likes, ``validation`` and ``client.toml``.

    Attributes:
        path: The folder.
        name: What the client is called.
        withhold: How much it says of its numbers of samples; empty for what its ``client.toml`` says.
    """

    path: Path
    name: str
    withhold: str = ""

    def describe(self, experiment: Experiment) -> list[Description]:
        """Return its description, with the classes it has."""
        federated, named = self._read(experiment, ())
        return [_description(experiment, federated, 0, named, self.counts(experiment, self.name))]

    def load(self, experiment: Experiment, name: str, classes: tuple[str, ...]) -> FederatedData:
        """Return its samples."""
        if name != self.name:
            raise ConfigError(f"{self.path}: is the folder of client {self.name!r}, not of {name!r}")
        return self._read(experiment, classes)[0]

    def counts(self, experiment: Experiment, name: str) -> str:
        """Return how much the client says of its numbers of samples."""
        return self.withhold or client_settings(self.path).get("counts", "exact")

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
        places = range(self.index, len(federated.clients), self.count)
        names = {place: federated.clients[place].name for place in places}
        return [_description(experiment, federated, p, True, self.counts(experiment, n)) for p, n in names.items()]

    def load(self, experiment: Experiment, name: str, classes: tuple[str, ...]) -> FederatedData:
        """Return the samples of one of them."""
        federated = load_data(experiment)
        own = tuple(c for c in federated.clients if c.name == name)
        if not own:
            raise ConfigError(f"client {name!r} is not among the {len(federated.clients)} of the data here")
        for client in own:
            check_trusted(experiment, name, client.settings.get("model", ""))
        return replace(federated, clients=own)

    def counts(self, experiment: Experiment, name: str) -> str:
        """Return how much the client says of its numbers of samples."""
        settings = next((c.settings for c in load_data(experiment).clients if c.name == name), {})
        return str(settings.get("counts", "exact"))


def source_of(node: Mapping[str, bool | float | int | str]) -> Source:
    """Return the source that a node's configuration names.

    Raises:
        ConfigError: If it names none.
    """
    if "client-dir" in node:
        path = Path(str(node["client-dir"])).expanduser()
        try:
            name = claims.client_name(str(node.get("client", path.name)))
            withhold = claims.one_of(node["counts"], "counts", claims.COUNTS) if "counts" in node else ""
        except ValueError as error:
            raise ConfigError(f"{error} (in --node-config, or the folder's name)") from None
        return Folder(path, name, withhold)
    if "partition-id" in node and "num-partitions" in node:
        return Share(int(node["partition-id"]), int(node["num-partitions"]))
    raise ConfigError("the node has no data: start it with --node-config 'client-dir=\"FOLDER\"'")


def check_counts(experiment: Experiment, name: str, counts: str) -> None:
    """Refuse to take part where the method would send numbers of samples that the client withholds.

    Raises:
        ConfigError: If it would.
    """
    if counts != "exact" and (why := counts_needed(experiment)):
        raise ConfigError(f"{name}: counts={counts}, but {why}")


def _description(
    experiment: Experiment, federated: FederatedData, place: int, named: bool, counts: str
) -> Description:
    client, K = federated.clients[place], federated.num_classes
    check_counts(experiment, client.name, counts)

    def said(numbers: list[int]) -> tuple[int, ...]:
        return tuple(claims.withheld(n, counts) for n in numbers)

    settings = {name: value for name, value in client.settings.items() if name != "counts"}
    own = settings.get("model", "")
    if is_code(own) and not recipe_names(experiment, own):
        settings["model"] = claims.PRIVATE  # the server could do nothing with it
    return Description(
        client.name,
        federated.class_names,
        named,
        said(client.train.counts(K).tolist()),
        said(client.test.counts(K).tolist()),
        claims.withheld(len(client.validation) if client.validation else 0, counts),
        federated.input_shape,
        settings,
        place,
        counts,
    )
