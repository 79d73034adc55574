"""Before the first round: who comes, who fits, and what a server that starts again remembers of it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

from protofed import claims, limits
from protofed.errors import CheckpointError, ConfigError, FederationError
from protofed.experiments.config import Experiment
from protofed.experiments.workshop import Census
from protofed.federation.files import read_json
from protofed.flower.admission import Admission, admit
from protofed.flower.census import elsewhere, shared
from protofed.flower.identity import IDENTITIES, Bindings, Identity, bound, read_roster
from protofed.flower.messages import Description, Job, description, read_sizes, sizes
from protofed.flower.nodes import QUERY, Nodes, message, reason_of, values_of

PATIENCE = 300.0
"""Seconds to wait for a node to build its model."""
REQUEST_BITS = 24
"""A server numbers its requests from its start on, in seconds, times two to this power."""
log = logging.getLogger("protofed")


@dataclass(frozen=True)
class Gathering:
    """Whom to wait for before the first round.

    Attributes:
        clients: How many clients; 0 for as many as a round needs and whoever else has come by then.
        wait_s: Seconds to wait.
        classes: Names of all classes in their order; empty to take them from the clients.
        roster: A file with the clients' public keys (see :func:`~protofed.flower.identity.read_roster`); empty to
            bind each name to the key that brings it first.
        identity: ``key``, or ``name`` where nodes are not authenticated, and are believed.
        clients_per_node: How many clients a node may bring.
    """

    clients: int = 0
    wait_s: float = 600.0
    classes: tuple[str, ...] = ()
    roster: str = ""
    identity: str = "key"
    clients_per_node: int = 1

    def __post_init__(self) -> None:
        if self.identity not in IDENTITIES:
            raise ConfigError(f"identity={self.identity!r}: must be {' or '.join(IDENTITIES)}")
        if self.roster and self.identity == "name":
            raise ConfigError("roster and identity=name contradict each other: leave one out")
        if self.clients_per_node < 1:
            raise ConfigError(f"clients-per-node={self.clients_per_node}: must be at least 1")

    def bindings(self) -> Bindings:
        """Return what is known of keys before anybody has come."""
        keys = read_roster(Path(self.roster).expanduser()) if self.roster else {}
        return Bindings(keys, bool(keys), cast(Identity, self.identity), self.clients_per_node)


@dataclass
class Party:
    """The clients of a run.

    Attributes:
        run: Identifies the run.
        clients: In the order of the federation.
        classes: Names of all classes, in their order.
        sizes: Of models that the server does not build, by client.
        left_out: Who came and does not take part, and why.
        keys: Fingerprint of each client's key.
        order: Number of the server's latest start, which its requests begin with.
        anew: Which clients began anew in which round, their nodes having lost their states.
    """

    run: str
    clients: list[Description]
    classes: tuple[str, ...]
    sizes: dict[str, Any] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    order: int = 0
    anew: list[dict[str, Any]] = field(default_factory=list)

    def to_tree(self) -> dict[str, Any]:
        """Return the record as plain values."""
        return asdict(self)

    @classmethod
    def of(cls, tree: object, experiment: Experiment) -> Party:
        """Undo :meth:`to_tree`.

        Raises:
            ValueError: If something is missing, of another type, or out of range.
        """
        kept = claims.mapping(tree, "nodes", cls.__dataclass_fields__)
        clients = [description(d) for d in claims.items(kept["clients"], "clients", limits.JSON_CHARACTERS)]
        dims = {d.name: d.settings.get("d", experiment.model.d) for d in clients}
        left_out, keys, found = (_table(kept[name], name) for name in ("left_out", "keys", "sizes"))
        return cls(
            claims.identifier(f"r{kept['run']}", "run")[1:],
            clients,
            claims.class_names(kept["classes"]),
            {name: sizes(found[name], d) for name, d in dims.items() if name in found},
            {claims.clean(who): claims.clean(why) for who, why in left_out.items()},
            {name: "" for name in dims if keys.get(name) == ""}
            | bound({name: keys[name] for name in dims if keys.get(name)}),
            claims.whole(kept["order"], "order", 0, limits.ORDER >> REQUEST_BITS),
            [_note(item) for item in claims.items(kept["anew"], "anew", limits.JSON_CHARACTERS)],
        )


def _note(item: object) -> dict[str, Any]:
    found = claims.mapping(item, "anew", ("client", "round"))
    return {
        "client": claims.client_name(found["client"]),
        "round": claims.whole(found["round"], "round", 0, limits.ROUNDS),
    }


def _table(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{what}: expected a table")
    return value


def meet(nodes: Nodes, experiment: Experiment, gathering: Gathering) -> Party:
    """Wait for clients; return those that fit.

    Raises:
        FederationError: If too few come, or fit.
        ConfigError: If the experiment itself does not suit the method.
    """
    least = experiment.participation.min_clients
    nodes.wait(gathering.clients or least, gathering.wait_s, least)
    if not gathering.clients:
        nodes.settle(gathering.wait_s)
    run, unfit, known = secrets.token_hex(8), dict[str, str](), dict[str, Any]()
    while True:
        candidates = [d for d in nodes.descriptions.values() if d.name not in unfit]
        found = admit(experiment, candidates, gathering.classes)
        left_out = nodes.left_out | unfit | found.left_out
        if len(found.clients) < least:
            raise FederationError(
                f"{len(found.clients)} clients fit, participation.min_clients={least} are needed: "
                + "; ".join(f"{who}: {why}" for who, why in list(left_out.items())[:5])
            )
        strange = [d.name for d in found.clients if _chooses(d, experiment) and d.name not in known]
        if not strange:
            break
        known |= (answers := _ask_sizes(nodes, experiment, found, run, strange, gathering.wait_s))[0]
        unfit |= answers[1]
        if not answers[1]:
            break
    for who, why in left_out.items():
        log.warning("%s: left out: %s", who, why)
    names = {d.name for d in found.clients}
    keys = {name: key for name, key in nodes.bindings.keys.items() if name in names}
    return Party(run, found.clients, found.classes, {n: s for n, s in known.items() if n in names}, left_out, keys)


def recall(path: Path, nodes: Nodes, experiment: Experiment, gathering: Gathering) -> Party:
    """Return the clients of a run that goes on, once enough are there.

    Raises:
        CheckpointError: If the file is damaged.
        FederationError: If too few come.
    """
    try:
        party = Party.of(read_json(path), experiment)
    except ValueError as error:
        raise CheckpointError(f"{path}: damaged ({claims.clean(error)}): begin the run anew") from None
    nodes.bindings.keys = {**party.keys, **nodes.bindings.keys}
    nodes.descriptions = {d.name: d for d in party.clients}
    nodes.wait(min(experiment.participation.min_clients, len(party.clients)), gathering.wait_s)
    if nodes.waiting:
        nodes.settle(min(gathering.wait_s, PATIENCE))
    return party


def _chooses(d: Description, experiment: Experiment) -> bool:
    """Whether a client's model is its own choice, which the server does not build."""
    return "model" in d.settings or d.settings.get("d", experiment.model.d) != experiment.model.d


def _ask_sizes(
    nodes: Nodes, experiment: Experiment, found: Admission, run: str, names: Collection[str], wait_s: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """Ask nodes to build the models of their clients; return the sizes, and the reasons of those that cannot."""
    census = Census.of(experiment, elsewhere(found.clients, found.classes))
    told = {d.name: s.to_json() for d, s in zip(found.clients, shared(census, found.classes), strict=True)}
    there: Sequence[Description] = [d for d in found.clients if d.name in names and d.name in nodes.node_of]
    questions = [
        message(Job(run, d.name, 0, nodes.config, told[d.name]).to_values(), nodes.node_of[d.name], QUERY)
        for d in there
    ]
    known: dict[str, Any] = {}
    unfit = dict.fromkeys(names, "did not say how large its model is")
    for number, reply in nodes.exchange(questions, min(max(wait_s, 1.0), PATIENCE)):
        d = there[number]
        try:
            known[d.name] = read_sizes(values_of(reply), d.settings.get("d", experiment.model.d))
            del unfit[d.name]
        except Exception as error:  # whatever a node sent: it must not end the run
            unfit[d.name] = reason_of(error)
    return known, unfit
