"""Sources of a node's data: a client's folder, or a share of a simulated federation."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from msgspec import Struct
from torch import Tensor

from protofed.config.architectures import check_trusted, counts_needed, is_code, recipe_names
from protofed.config.coverage import check_classes, check_steps
from protofed.config.remote import Permits, plan_of, read_plan
from protofed.data.comparing import Site, compare, describe, merge_columns
from protofed.data.federation import RawClient, client_settings, read_client
from protofed.data.preparing import Agreed, prepare_alone
from protofed.data.tables import (
    Moments,
    RawColumn,
    SiteColumn,
    Table,
    fit,
    moments,
    recode,
    state_columns,
    text_places,
)
from protofed.engine import (
    DataOptions,
    Experiment,
    FederatedData,
    FederationSummary,
    build_options,
    encode,
    load_data,
    resolve,
)
from protofed.errors import ConfigError, DataError, PayloadError, refusal
from protofed.models.encoders import build_encoder
from protofed.untrusted import claims
from protofed.untrusted.decoding import Disclosure, SampleCount, decode, parse
from protofed_flower.messages import Description, Expected

log = logging.getLogger("protofed")
NOTHING_EXPECTED = Expected()
LEAST_SAMPLES = 31
"""``least_samples`` of a node that does not choose: from there on, docs/privacy.md finds few single
training samples, whatever prototypes a method sends."""


@dataclass(frozen=True)
class Folder:
    """One client, in a folder with ``train``, ``test`` and optionally ``validation`` and ``client.toml``."""

    path: Path
    name: str
    withhold: str = ""  #: Disclosure of its numbers of samples; "" for the setting in ``client.toml``
    #: Least samples of a class that it reports; None for the setting in ``client.toml``, or :data:`LEAST_SAMPLES`
    least: int | None = None
    names: bool = False  #: Names of classes, columns and categories may leave the node
    reading: str = "{}"  #: The ``data`` section of ``node.toml``, how its samples are read, as JSON

    @property
    def data(self) -> DataOptions:
        """How the samples are read."""
        return build_options(DataOptions, json.loads(self.reading), "node.toml: data")

    def experiment(self, config: str, permits: Permits) -> Experiment:
        """Return the experiment of a server's plan, as JSON, with samples read as the node's own file says."""
        # The operator trusts the code that the client's own folder names.
        return read_plan(plan_tree(config), replace(self.data, trust_code=True), permits)

    def reads(self, config: str, permits: Permits) -> str:
        """Return the plan as this node reads it, as JSON."""
        return plan_text(read_plan(plan_tree(config), DataOptions(), permits))

    @property
    def code(self) -> list[str]:
        """Names of code in the client's own folder."""
        return [*filter(claims.is_code, [client_settings(self.path).get("model", "")])]

    def describe(self, experiment: Experiment, expected: Expected = NOTHING_EXPECTED) -> list[Description]:
        """Return the description of the client, with the classes and columns in its data.

        Raises:
            RefusalError: If the data have names that are not expected, or none are and names must not leave.
        """
        data, counts = experiment.data, self.counts(experiment, self.name)
        raw = self._read(experiment, expected)
        for note in raw.federated.notes:
            log.warning("%s: %s", self.name, note)
        federated = self._rename(raw.federated)
        check_steps(experiment, raw.columns or ())
        check_classes(experiment, raw.declared, self.name)
        table = None
        if raw.columns is not None:
            columns, x = self._agree_names(raw.columns, federated.clients[0].train.x, data, expected)
            standardise = data.standardise_by(table=True)
            stating = standardise in ("federated", "chosen")
            if stating and counts != "exact":
                raise refusal(
                    "counts",
                    "data.standardise",
                    f"{self.name}: counts={counts}, but data.standardise=federated states numbers of values: "
                    "choose counts=exact or data.standardise=site",
                )
            if stating and (data.validation_fraction or data.train_samples):
                raise ConfigError(
                    f"{self.name}: data.standardise=federated states sums over samples that the run's seed draws, "
                    "and two of them could be subtracted: give the client validation samples of its own"
                )
            try:
                table = state_columns(columns, moments(x), standardise, data.missing, data.ranges)
            except DataError as error:
                raise DataError(f"{self.name}: {error}") from None
        described = _description(experiment, federated, 0, raw.named, counts, table)
        described = replace(described, reading=data.reading if table is not None else "")
        if experiment.privacy.mode == "sample":
            samples, K = len(federated.clients[0].train), federated.num_classes
            dealt = tuple(samples // K + (number < samples % K) for number in range(K))
            described = replace(described, train=dealt, counts=claims.EVEN)
        if experiment.encoder.name:
            shape, weights_dir = raw.federated.input_shape, experiment.execution.weights_dir
            encoder = build_encoder(experiment.encoder, shape, weights_dir, texts=text_places(raw.columns or ()))
            described = replace(described, encoder=encoder.key)
        return [described]

    def _read(self, experiment: Experiment, expected: Expected) -> RawClient:
        """Read the samples, whose classes are those that the server expects, or may leave by their names."""
        try:
            raw = read_client(self.path, experiment.data, experiment.seed, expected.classes)
        except DataError:
            if not expected.classes:
                raise
            found = read_client(self.path, experiment.data, experiment.seed).federated.class_names
            self._refuse("classes", "classes", (name for name in found if name not in expected.classes))
        if raw.named and not expected.classes and not self.names:
            self._refuse("classes", "classes")
        return raw

    def _agree_names(
        self, columns: tuple[RawColumn, ...], x: Tensor, data: DataOptions, expected: Expected
    ) -> tuple[tuple[RawColumn, ...], Tensor]:
        """Return the columns of a table in the order that the server expects, and its values likewise."""
        wanted = tuple(column.raw for column in expected.columns)
        if not wanted:
            if not self.names and columns != tuple(RawColumn(str(number)) for number in range(len(columns))):
                self._refuse("columns", "data.columns")
            return columns, x
        given = replace(data, categories={c.name: c.categories for c in wanted if c.categories})
        sites = [Site("the federation", columns=wanted), Site(self.name, columns=columns)]
        if found := compare(sites, given):
            log.warning("%s", describe(found))
            self._refuse("columns", "data.columns", {c.name for c in columns} ^ {c.name for c in wanted})
        agreed = merge_columns(sites, given)
        return agreed, recode(x, columns, agreed)

    def _refuse(self, code: str, option: str, names: Iterable[str] = ()) -> NoReturn:
        raise refusal(code, option, names=sorted(names)[:8] if self.names else ())

    def load(self, experiment: Experiment, name: str, summary: FederationSummary) -> FederatedData:
        """Return the samples of the client."""
        if name != self.name:
            raise ConfigError(f"{self.path}: is the folder of client {self.name!r}, not of {name!r}")
        raw = read_client(self.path, experiment.data, experiment.seed, summary.classes)
        encoding = summary.encoding
        agreed = Agreed(encoding.input_shape if encoding else summary.input_shape, summary.table)
        if summary.table is not None:
            _check_table(summary.table, experiment.data)
        federated = self._rename(prepare_alone(raw.federated, raw.columns, experiment.data, agreed, self.path))
        federated = encode(federated, experiment.encoder, experiment.execution.weights_dir)
        if (federated.encoding.key if federated.encoding else "") != (encoding.key if encoding else ""):
            raise ConfigError(f"{self.name}: its encoder differs from that of the federation (encoder.weights)")
        return federated

    def counts(self, experiment: Experiment, name: str) -> str:
        """Return the client's disclosure of its numbers of samples."""
        return self.withhold or client_settings(self.path).get("counts", "exact")

    def recorded(self, experiment: Experiment) -> Experiment:
        """Return the experiment with the client's folder as its data."""
        data = experiment.data
        options = data.options if data.source == "path" else None
        data = replace(data, source="path", path=str(self.path.absolute()), options=options, trust_code=False)
        return replace(experiment, data=data)

    def _rename(self, federated: FederatedData) -> FederatedData:
        (client,) = federated.clients
        own = {} if self.least is None else {"least_samples": self.least}
        settings = {"least_samples": LEAST_SAMPLES, **client.settings, **own}
        return replace(federated, clients=(replace(client, name=self.name, settings=settings),))


@dataclass(frozen=True)
class SimulatedShare:
    """Clients ``index``, ``index + count``, … of the experiment's data, for a node of a simulation."""

    index: int
    count: int
    data: ClassVar[DataOptions] = DataOptions()
    code: ClassVar[None] = None  # of a program whose nodes and server are one

    def experiment(self, config: str, permits: Permits) -> Experiment:
        """Return the experiment, which the program that this node is a part of has resolved."""
        return resolve(plan_tree(config))

    def reads(self, config: str, permits: Permits) -> str:
        """Return the configuration as this node reads it, as JSON."""
        return json.dumps(self.experiment(config, permits).to_tree(), sort_keys=True)

    def describe(self, experiment: Experiment, expected: Expected = NOTHING_EXPECTED) -> list[Description]:
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

    def counts(self, experiment: Experiment, name: str) -> str:
        """Return a client's disclosure of its numbers of samples."""
        settings = next((c.settings for c in load_data(experiment).clients if c.name == name), {})
        return str(settings.get("counts", "exact"))

    def recorded(self, experiment: Experiment) -> Experiment:
        """Return the experiment."""
        return experiment


Source = Folder | SimulatedShare  #: The clients of one node; equal sources have equal hashes


def source_of(node: Mapping[str, bool | float | int | str]) -> Source:
    """Return the source that a node's configuration names."""
    if "client-dir" in node:
        path = Path(str(node["client-dir"])).expanduser()
        try:
            name = claims.client_name(str(node.get("client", path.name)))
            found = decode(dict(node), _Disclosed, error=ValueError)
        except ValueError as error:
            raise ConfigError(f"{error} (in --node-config, or the folder's name)") from None
        build_options(DataOptions, found.data, "node.toml: data")
        reading = json.dumps(found.data, sort_keys=True)
        return Folder(path, name, found.counts, found.least_samples, found.names, reading)
    if "partition-id" in node and "num-partitions" in node:
        return SimulatedShare(int(node["partition-id"]), int(node["num-partitions"]))
    raise ConfigError("the node has no data: start it with --node-config 'client-dir=\"FOLDER\"'")


class _Disclosed(Struct, rename="kebab"):
    counts: Disclosure = ""
    least_samples: SampleCount | None = None
    names: bool = False
    data: dict[str, Any] = {}


def _check_table(table: Table, data: DataOptions) -> None:
    """Refuse an agreement that makes inputs of columns otherwise than the node's own file says."""
    nothing = [Moments(0, 0.0, 0.0)] * len(table.columns)
    own = fit(table.raw, [nothing], data.standardise_by(table=True), data.missing, data.ranges)
    for given, known in zip(table.columns, own.columns, strict=True):
        bounded = given.bounded != known.bounded or (known.bounded and given != known)
        if bounded or (given.indicator and data.missing != "indicator") or table.standardise != own.standardise:
            why = f"{given.name}: the server makes other inputs of it than this node"
            raise refusal("changed", "data", why)


def _without_rare(train: list[int], test: list[int], least: int) -> tuple[list[int], list[int]]:
    """Return numbers of samples by class without those of unreported classes, whose test samples are dealt out."""
    shown = [not 0 < number < least for number in train]
    places = [place for place, number in enumerate(train) if number >= max(1, least)] or list(range(len(train)))
    kept = [number * known for number, known in zip(test, shown, strict=True)]
    for number in range(sum(test) - sum(kept)):
        kept[places[number % len(places)]] += 1
    return [number * known for number, known in zip(train, shown, strict=True)], kept


def plan_tree(config: str) -> dict[str, Any]:
    """Return a server's plan as plain values."""
    try:
        return decode(parse(config, "config"), dict[str, Any], "config", PayloadError)
    except ValueError as error:
        raise PayloadError(str(error)) from None


def plan_text(experiment: Experiment) -> str:
    """Return what a server sends of an experiment, as JSON."""
    return json.dumps(plan_of(experiment), sort_keys=True)


def check_counts(experiment: Experiment, name: str, counts: str) -> None:
    """Check that the method does not need numbers of samples that a client withholds."""
    if counts != "exact" and (why := counts_needed(experiment)):
        raise refusal("counts", text=f"{name}: counts={counts}, but {why}")


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
    least = max(experiment.privacy.least_samples, settings.get("least_samples", 0))
    train, test = _without_rare(client.train.counts(K).tolist(), client.test.counts(K).tolist(), least)
    return Description(
        client.name,
        federated.class_names,
        named,
        disclosed(train),
        disclosed(test),
        claims.withheld(len(client.validation) if client.validation else 0, counts),
        federated.input_shape,
        settings,
        place,
        counts,
        table,
    )
