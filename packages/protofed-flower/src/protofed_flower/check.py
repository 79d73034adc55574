"""Checks of a node's data, model, certificates and key, for its operator to run before the first round.

Every check ends in one line: ok; a warning of an end that is near; a problem and its remedy; or skipped, because
its option is not given.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from cryptography import x509

from protofed import models
from protofed.config.architectures import turns
from protofed.data.federation import load_client
from protofed.engine import (
    Builder,
    ClientData,
    DataOptions,
    Experiment,
    FederatedData,
    FederationSummary,
    Hardware,
    apply_overrides,
    encode,
    load_recipe,
    parse_overrides,
    resolve,
)
from protofed.errors import ConfigError, DataError, ModelError, ProtofedError
from protofed.text import sides
from protofed.visits.batches import batches
from protofed_flower import trust
from protofed_flower.folder import check_private
from protofed_flower.policy import ANY, Policy
from protofed_flower.roster import read_signed
from protofed_flower.settings import node_settings
from protofed_flower.sources import Folder, Source, check_counts, plan_text, source_of
from protofed_flower.state import INDEX

T = TypeVar("T")
CLOCK = 300.0  #: Seconds by which Flower lets the clocks of a node and the SuperLink differ, with authentication
FILES = ("client_dir", "state_dir", "key", "roster", "authority")
"""Fields of a request that a node's own settings also state."""


@dataclass(frozen=True)
class CheckRequest:
    """Inputs of the checks; a check is skipped if its input is None."""

    client_dir: Path | None = None  #: With ``train``, ``test`` and optionally ``client.toml``
    classes: Sequence[str] = ()  #: Of the federation in order; may be empty
    config: Path | None = None  #: The node's ``node.toml``, for what is None
    recipe: str | None = None
    overrides: Sequence[str] = ()
    state_dir: Path | None = None  #: Keeps the node's model between rounds
    superlink: str | None = None  #: As ``HOST:PORT``
    root_certificates: Path | None = None  #: The certificate of the authority that signed the SuperLink's
    key: Path | None = None
    roster: Path | None = None
    authority: Path | None = None  #: The certificate of the authority that signed the roster


class CheckResult(NamedTuple):
    """The outcome of one check."""

    name: str
    state: Literal["ok", "warning", "problem", "skipped"]
    text: str


class _SkippedError(Exception):
    """Raised by a check that cannot be carried out."""


class _WarningError(Exception):
    """Raised by a check that finds nothing wrong but an end that is near."""


def check_node(request: CheckRequest) -> Iterator[CheckResult]:
    """Yield the outcome of every check, in the order in which an operator would fix problems."""
    node = _Node(request)
    steps: list[tuple[str, Callable[[], str]]] = [
        ("config", node.check_config),
        ("recipe", node.check_recipe),
        ("client-dir", node.check_data),
        ("model", node.check_model),
        ("state-dir", node.check_state),
        ("superlink", node.check_superlink),
        ("root-certificates", node.check_root_certificates),
        ("tls", node.check_tls),
        ("clock", node.check_clock),
        ("key", node.check_key),
        ("roster", node.check_roster),
    ]
    for name, step in steps:
        try:
            yield CheckResult(name, "ok", step())
        except _SkippedError as reason:
            yield CheckResult(name, "skipped", str(reason))
        except _WarningError as warning:
            yield CheckResult(name, "warning", str(warning))
        except ProtofedError as error:
            yield CheckResult(name, "problem", str(error))
        except OSError as error:  # e.g. no permission to list a folder or to read a file
            text = f"{error.filename}: {error.strerror}: correct the path or its permissions"
            yield CheckResult(name, "problem", text)


class _Node:
    """A node as its operator describes it; checks keep results that later ones use."""

    def __init__(self, request: CheckRequest) -> None:
        self.request = request
        self.client = ""
        self.policy = ANY
        self.source: Source = Folder(request.client_dir or Path(), "")
        self.experiment: Experiment | None = None
        self.federated: FederatedData | None = None
        self.address: tuple[str, int] | None = None
        self.authorities: list[x509.Certificate] = []
        self.trusted: Path | None = None

    def check_config(self) -> str:
        path = _given(self.request.config, "--config")
        found = node_settings({"config": str(path)})
        self.source = source_of(found)
        self.client, self.policy = str(found.get("client", "")), Policy.of(found)
        given: dict[str, Any] = {
            name: Path(found[name.replace("_", "-")]) for name in FILES if name.replace("_", "-") in found
        }
        self.request = replace(self.request, **{n: p for n, p in given.items() if getattr(self.request, n) is None})
        allowed = self.policy.allowed
        return f"{path}: allows {', '.join(allowed.methods) if allowed else 'every method'}"

    def check_recipe(self) -> str:
        recipe = _given(self.request.recipe, "RECIPE")
        chosen = resolve(apply_overrides(load_recipe(recipe), parse_overrides(self.request.overrides)))
        folder = chosen.execution.weights_dir or str(self.request.client_dir or "")
        found = self.source.experiment(plan_text(chosen), self.policy.permits)
        self.experiment = replace(
            found, data=found.data.within(folder), execution=replace(found.execution, weights_dir=folder)
        )
        self.policy.check(self.experiment)
        return f"{self.experiment.recipe}: {self.experiment.method}"

    def check_data(self) -> str:
        folder = _given(self.request.client_dir, "--client-dir").expanduser().absolute()
        data = self.experiment.data if self.experiment else self.source.data
        self.federated = _read_client(folder, data, self.experiment, tuple(self.request.classes))
        client = self.federated.clients[0]
        if self.experiment is not None:
            check_counts(self.experiment, client.name, client.settings.get("counts", "exact"))
        present = int((client.train.counts(self.federated.num_classes) > 0).sum())
        settings = ", ".join(f"{name} = {value!r}" for name, value in client.settings.items())
        return (
            f"{client.name}: {len(client.train)} training and {len(client.test)} test samples of shape "
            f"{sides(self.federated.input_shape)}, {present} of {self.federated.num_classes} classes"
            + (f", client.toml: {settings}" if settings else "")
            + "".join(f". {note}" for note in self.federated.notes)
        )

    def check_model(self) -> str:
        _given(self.request.recipe, "RECIPE")
        _given(self.request.client_dir, "--client-dir")
        if self.experiment is None or self.federated is None:
            raise _SkippedError("needs a recipe and a client folder without problems")
        try:
            described = _build_models(self.experiment, self.federated)
        except ProtofedError:
            raise
        except Exception as error:  # a user's own model may raise anything
            reason = next(iter(str(error).splitlines()), "")
            raise ModelError(f"cannot be built or fed: {type(error).__name__}: {reason}") from None
        return f"{' or '.join(described)}: takes a sample, gives {self.federated.num_classes} logits"

    def check_state(self) -> str:
        folder = _given(self.request.state_dir, "--state-dir").expanduser()
        existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise ConfigError(f"{existing}: is a file: give a folder that belongs to this node alone")
        try:
            # Permissions are not enough: the file system may be read-only or full.
            with tempfile.TemporaryFile(dir=existing) as file:
                file.write(bytes(4096))
        except OSError as error:
            raise ConfigError(
                f"{existing}: cannot be written to ({error.strerror}): grant this user permission, or give another "
                "folder"
            ) from None
        if not folder.exists():
            return f"{folder}: does not exist yet, can be created"
        check_private(folder)
        runs = sum(1 for _ in folder.glob(f"*/*/{INDEX}"))  # STATE-DIR/CLIENT/RUN
        older = next(folder.glob(f"*/{INDEX}"), None)
        left = f"; {older.parent} is of an older version: its files stay, and are not read" if older else ""
        return f"{folder}: writable, holds {runs} run{'s' if runs != 1 else ''}{left}"

    def check_superlink(self) -> str:
        host, port = trust.split_address(_given(self.request.superlink, "--superlink"))
        trust.connect(host, port).close()
        self.address = host, port
        return f"{host}:{port} answers"

    def check_root_certificates(self) -> str:
        path = _given(self.request.root_certificates, "--root-certificates").expanduser()
        self.authorities = trust.read_authorities(path)
        until = min(authority.not_valid_after_utc for authority in self.authorities)
        return _until(f"{path}: {trust.full_name(self.authorities[0].subject)}", until)

    def check_tls(self) -> str:
        _given(self.request.superlink, "--superlink")
        path = _given(self.request.root_certificates, "--root-certificates").expanduser()
        if self.address is None or not self.authorities:
            raise _SkippedError("needs a SuperLink that answers and root certificates without problems")
        shown = trust.handshake(*self.address, path, self.authorities)
        self.trusted = path
        return _until(f"certificate for {trust.host_names(shown)}", shown.not_valid_after_utc)

    def check_clock(self) -> str:
        if self.trusted is None or self.address is None:
            raise _SkippedError("needs a SuperLink whose certificate is accepted")
        stated = trust.stated_time(*self.address, self.trusted)
        if stated is None:
            raise _SkippedError("the SuperLink states no time")
        apart = abs((datetime.now(UTC) - stated).total_seconds())
        if apart > CLOCK:
            raise ConfigError(
                f"the clock here and that of the SuperLink are {apart / 60:,.0f} minutes apart; Flower refuses "
                f"nodes from {CLOCK / 60:.0f} on, without a word: set the clock, e.g. by NTP"
            )
        return f"{apart:.0f} s apart from the SuperLink's"

    def check_key(self) -> str:
        key = _given(self.request.key, "--key").expanduser()
        text, certificate = trust.check_key(key), key.with_name(f"{key.name}.crt")
        if self.trusted is not None:  # only the SuperLink, which was reached, knows the keys that it admits
            text += (
                "; if the SuperNode ends nevertheless, or logs `Connection attempt failed`, the server does not "
                "admit this key (not registered, or revoked): ask the federation's authority"
            )
        if self.request.authority is None or not certificate.exists():
            return text
        until = trust.check_issued(certificate, key, self.request.authority.expanduser())
        return _until(f"{text}; {certificate.name} is the authority's", until)

    def check_roster(self) -> str:
        path = _given(self.request.roster, "--roster").expanduser()
        found = read_signed(path, _given(self.request.authority, "--authority").expanduser())
        key = _given(self.request.key, "--key").expanduser()
        own = found.name(trust.load_key(key).public_key())
        if not own:
            raise ConfigError(f"{path}: lists no client with the key {key}: ask the authority for one that does")
        name = self.client or (self.federated.clients[0].name if self.federated is not None else own)
        if name != own and name in found.keys:
            raise ConfigError(
                f"{path}: lists {name} with another key than {key}, which is that of {own}: correct one"
            )
        hint = f', which needs client="{own}" in --node-config' if name != own else ""
        text = f"{path}: {len(found.keys)} clients of {found.federation}"
        return _until(text, found.until, f"; this node is {own}{hint}")


def _given(value: T | None, option: str) -> T:
    if value is None:
        raise _SkippedError(f"no {option} given")
    return value


def _until(text: str, end: datetime, more: str = "") -> str:
    """Return a text with the end of something valid; raise it as a warning if that is near."""
    text = f"{text}, valid until {end:%Y-%m-%d}"
    if warning := trust.remaining(end):
        raise _WarningError(f"{text}, {warning}{more}")
    return text + more


def _read_client(
    folder: Path, data: DataOptions, experiment: Experiment | None, classes: tuple[str, ...]
) -> FederatedData:
    """Return the client's data, with the settings checked as far as possible without a recipe."""
    seed = experiment.seed if experiment else 0
    federated, named = load_client(folder, data, seed, classes)
    if classes and not named:
        # Only the numbers of these classes are used, so a wrong order of names would go unnoticed.
        present = load_client(folder, data, seed)[0].class_names
        pairs = enumerate(zip(present, classes, strict=False))
        if any(name not in (expected, str(number)) for number, (name, expected) in pairs):
            raise DataError(
                f"{folder}: its classes are {', '.join(present)}, but --classes says {', '.join(classes)}: number "
                "the classes in that order"
            )
    settings = federated.clients[0].settings
    if "model" in settings:
        try:
            models.members(settings["model"])
        except ConfigError as error:
            raise ConfigError(f"{folder / 'client.toml'}: {error}") from None
    return federated


def _build_models(experiment: Experiment, alone: FederatedData) -> list[str]:
    """Return descriptions of the models that this node may be assigned, after a forward pass of each."""
    alone = encode(alone, experiment.encoder, experiment.execution.weights_dir)
    client = alone.clients[0]
    clients = _turns(experiment, client)
    # Properties that all clients must share are compared with those of a client without settings of its own.
    plain = replace(client, name="the recipe", settings={})
    FederationSummary.of(experiment, replace(alone, clients=(*clients, plain)))
    hardware = Hardware.of(experiment.execution)
    federated = hardware.place(replace(alone, clients=clients))
    summary = FederationSummary.of(experiment, federated)
    summary = replace(summary, clients=0)  # only the server knows how many take part
    builder = Builder(experiment, federated, hardware, summary)
    for member in builder.members:
        samples = member.train if len(member.train) else member.test
        model = builder.models[member.kind].eval()
        with torch.no_grad():
            output = model(next(batches(samples.at(slice(1)), model)).x)
        for name, tensor, width in (
            ("features", output.features, model.feature_dim),
            ("logits", output.logits, alone.num_classes),
        ):
            if tuple(tensor.shape) != (1, width) or not bool(tensor.isfinite().all()):
                raise ModelError(
                    f"{member.name}: {member.kind}: {name} of a sample are {sides(tuple(tensor.shape))}, "
                    f"expected 1×{width} finite numbers"
                )
    return list(builder.models)


def _turns(experiment: Experiment, client: ClientData) -> tuple[ClientData, ...]:
    """Return the client once per architecture it may be assigned: those of a group are assigned in turn."""
    count = len(turns(experiment))
    if "model" in client.settings or count == 1:
        return (client,)
    group = "model.members" if experiment.model.members else experiment.model.name
    return tuple(replace(client, name=f"{client.name} with model {i + 1} of {group}") for i in range(count))
