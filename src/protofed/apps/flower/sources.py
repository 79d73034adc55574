"""Sources of a node's data: a client's folder, or a share of a simulated federation."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import Struct

from protofed.apps.flower.messages import Description
from protofed.config.architectures import FederationSummary, check_trusted, counts_needed, is_code, recipe_names
from protofed.config.coverage import check_classes, check_steps
from protofed.config.schema import Experiment
from protofed.data.federation import client_settings, read_client
from protofed.data.preparing import Agreed, prepare_alone
from protofed.data.tables import SiteColumn, moments, stated, text_places
from protofed.errors import ConfigError, DataError
from protofed.experiments.encoding import encode
from protofed.experiments.loading import load_data
from protofed.models.encoders import build_encoder
from protofed.samples import FederatedData
from protofed.untrusted import claims
from protofed.untrusted.decoding import Disclosure, SampleCount, decoded
from protofed.visits.rare import LEAST_SAMPLES

log = logging.getLogger("protofed")


@dataclass(frozen=True)
class Folder:
    """One client, in a folder with ``train``, ``test`` and optionally ``validation`` and ``client.toml``.

    Attributes:
        withhold: Disclosure of its numbers of samples; "" for the setting in ``client.toml``.
        least: Least samples of a class that it reports; None for the setting in ``client.toml``, or
            :data:`~protofed.visits.rare.LEAST_SAMPLES`.
    """

    path: Path
    name: str
    withhold: str = ""
    least: int | None = None

    def describe(self, experiment: Experiment) -> list[Description]:
        """Return the description of the client, with the classes and columns in its data."""
        if experiment.shift.used:
            raise ConfigError("shift changes data of simulations, and clients here have their own: leave it out")
        raw = read_client(self.path, experiment.data, experiment.seed)
        for note in raw.federated.notes:
            log.warning("%s: %s", self.name, note)
        counts, federated, data = self.counts(experiment, self.name), self._named(raw.federated), experiment.data
        check_steps(experiment, raw.columns or ())
        check_classes(experiment, raw.declared, self.name)
        table = None
        if raw.columns is not None:
            standardise = data.standardised(table=True)
            if standardise == "federated" and counts != "exact":
                raise ConfigError(
                    f"{self.name}: counts={counts}, but data.standardise=federated states numbers of values: "
                    "choose counts=exact or data.standardise=site"
                )
            try:
                sums = moments(federated.clients[0].train.x)
                table = stated(raw.columns, sums, standardise, data.missing, data.ranges)
            except DataError as error:
                raise DataError(f"{self.name}: {error}") from None
        described = _description(experiment, federated, 0, raw.named, counts, table)
        if experiment.privacy.mode == "sample":
            samples, K = len(federated.clients[0].train), federated.num_classes
            dealt = tuple(samples // K + (number < samples % K) for number in range(K))
            described = replace(described, train=dealt, counts=claims.EVEN)
        if experiment.encoder.name:
            shape, weights_dir = raw.federated.input_shape, experiment.execution.weights_dir
            encoder = build_encoder(experiment.encoder, shape, weights_dir, texts=text_places(raw.columns or ()))
            described = replace(described, encoder=encoder.key)
        return [described]

    def load(self, experiment: Experiment, name: str, summary: FederationSummary) -> FederatedData:
        """Return the samples of the client."""
        if name != self.name:
            raise ConfigError(f"{self.path}: is the folder of client {self.name!r}, not of {name!r}")
        raw = read_client(self.path, experiment.data, experiment.seed, summary.classes)
        encoding = summary.encoding
        agreed = Agreed(encoding.input_shape if encoding else summary.input_shape, summary.table)
        federated = self._named(prepare_alone(raw.federated, raw.columns, experiment.data, agreed, self.path))
        federated = encode(federated, experiment.encoder, experiment.execution.weights_dir)
        if (federated.encoding.key if federated.encoding else "") != (encoding.key if encoding else ""):
            raise ConfigError(f"{self.name}: its encoder differs from that of the federation (encoder.weights)")
        return federated

    @property
    def company(self) -> Folder:
        """This source: nobody else visits."""
        return self

    def everyone(self, experiment: Experiment, summary: FederationSummary) -> FederatedData:
        """Return the samples of the client."""
        return self.load(experiment, self.name, summary)

    def counts(self, experiment: Experiment, name: str) -> str:
        """Return the client's disclosure of its numbers of samples."""
        return self.withhold or client_settings(self.path).get("counts", "exact")

    def recorded(self, experiment: Experiment) -> Experiment:
        """Return the experiment with the client's folder as its data."""
        data = experiment.data
        options = data.options if data.source == "path" else None
        return replace(
            experiment, data=replace(data, source="path", path=str(self.path.absolute()), options=options)
        )

    def _named(self, federated: FederatedData) -> FederatedData:
        (client,) = federated.clients
        own = {} if self.least is None else {"least_samples": self.least}
        settings = {"least_samples": LEAST_SAMPLES, **client.settings, **own}
        return replace(federated, clients=(replace(client, name=self.name, settings=settings),))


@dataclass(frozen=True)
class SimulatedShare:
    """Clients ``index``, ``index + count``, … of the experiment's data, for a node of a simulation.

    Attributes:
        index: Of the node, from 0.
        count: Of nodes.
    """

    index: int
    count: int

    def describe(self, experiment: Experiment) -> list[Description]:
        """Return the descriptions of this node's clients."""
        federated = load_data(experiment)
        places = range(self.index, len(federated.clients), self.count)
        names = {place: federated.clients[place].name for place in places}
        return [_description(experiment, federated, p, True, self.counts(experiment, n)) for p, n in names.items()]

    def load(self, experiment: Experiment, name: str, summary: FederationSummary) -> FederatedData:
        """Return the samples of one client; ``summary`` is ignored, as data loaded as a whole agree."""
        federated = load_data(experiment)
        clients = tuple(c for c in federated.clients if c.name == name)
        if not clients:
            raise ConfigError(f"client {name!r} is not among the {len(federated.clients)} clients of the data")
        for client in clients:
            check_trusted(experiment, name, client.settings.get("model", ""))
        return replace(federated, clients=clients)

    @property
    def company(self) -> SimulatedShare:
        """The whole federation: a process of a simulation serves any node."""
        return SimulatedShare(0, 1)

    def everyone(self, experiment: Experiment, summary: FederationSummary) -> FederatedData:
        """Return the samples of all clients of the experiment."""
        return load_data(experiment)

    def counts(self, experiment: Experiment, name: str) -> str:
        """Return a client's disclosure of its numbers of samples."""
        settings = next((c.settings for c in load_data(experiment).clients if c.name == name), {})
        return str(settings.get("counts", "exact"))

    def recorded(self, experiment: Experiment) -> Experiment:
        """Return the experiment."""
        return experiment


Source = Folder | SimulatedShare
"""The clients of one node; equal sources have equal hashes."""


def source_of(node: Mapping[str, bool | float | int | str]) -> Source:
    """Return the source that a node's configuration names."""
    if "client-dir" in node:
        path = Path(str(node["client-dir"])).expanduser()
        try:
            name = claims.client_name(str(node.get("client", path.name)))
            found = decoded(dict(node), _Disclosed, error=ValueError)
        except ValueError as error:
            raise ConfigError(f"{error} (in --node-config, or the folder's name)") from None
        return Folder(path, name, found.counts, found.least_samples)
    if "partition-id" in node and "num-partitions" in node:
        return SimulatedShare(int(node["partition-id"]), int(node["num-partitions"]))
    raise ConfigError("the node has no data: start it with --node-config 'client-dir=\"FOLDER\"'")


class _Disclosed(Struct, rename="kebab"):
    counts: Disclosure = ""
    least_samples: SampleCount | None = None


def check_counts(experiment: Experiment, name: str, counts: str) -> None:
    """Check that the method does not need numbers of samples that a client withholds."""
    if counts != "exact" and (why := counts_needed(experiment)):
        raise ConfigError(f"{name}: counts={counts}, but {why}")


def _description(
    experiment: Experiment,
    federated: FederatedData,
    place: int,
    named: bool,
    counts: str,
    table: tuple[SiteColumn, ...] | None = None,
) -> Description:
    client, K = federated.clients[place], federated.num_classes
    check_counts(experiment, client.name, counts)

    def disclosed(numbers: list[int]) -> tuple[int, ...]:
        return tuple(claims.withheld(n, counts) for n in numbers)

    settings = {name: value for name, value in client.settings.items() if name != "counts"}
    model = settings.get("model", "")
    if is_code(model) and not recipe_names(experiment, model):
        settings["model"] = claims.PRIVATE  # the server could not build it
    return Description(
        client.name,
        federated.class_names,
        named,
        disclosed(client.train.counts(K).tolist()),
        disclosed(client.test.counts(K).tolist()),
        claims.withheld(len(client.validation) if client.validation else 0, counts),
        federated.input_shape,
        settings,
        place,
        counts,
        table,
    )
