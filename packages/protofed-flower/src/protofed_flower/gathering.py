"""Gathering of the clients before the first round, and its record for a server that restarts."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

from protofed.engine import Experiment, FederationSummary
from protofed.errors import CheckpointError, ConfigError, FederationError, PayloadError, unknown_name
from protofed.storage.files import read_json
from protofed.untrusted import claims, limits
from protofed.untrusted.decoding import ClassNames, ClientName, Round, decode, within
from protofed_flower import trust
from protofed_flower.admission import Admission, admit
from protofed_flower.identity import Bindings, KnownClients, bound, read_roster
from protofed_flower.messages import Description, Job, RunName, ValidDescription, Values, read_sizes, sizes
from protofed_flower.nodes import QUERY, Nodes, reason_of
from protofed_flower.summary import client_summaries, describe_federation

PATIENCE = 300.0  #: Seconds to wait for a node to build its model
REQUEST_BITS = 24
"""A server numbers its requests from the time of its start (seconds since the epoch) times two to this power."""
log = logging.getLogger("protofed")


@dataclass(frozen=True)
class Gathering:
    """Conditions for the clients before the first round."""

    clients: int = 0  #: 0 for as many as a round needs and any others that have arrived by then
    wait_s: float = 600.0
    classes: tuple[str, ...] = ()  #: In order; empty to take them from the clients
    #: File with the clients' public keys (see :func:`~protofed_flower.identity.read_roster`); "" to bind each name
    #: to the first key that uses it
    roster: str = ""
    certificates: tuple[str, ...] = ()  #: Files of which the log warns when they end soon
    simulated: bool = False  #: All nodes belong to the run

    def listed(self) -> KnownClients:
        """Read the roster; without one, nobody is listed."""
        return read_roster(Path(self.roster).expanduser()) if self.roster else KnownClients({}, None)

    def bindings(self) -> Bindings:
        """Return the bindings of names to keys before any client has arrived."""
        keys = self.listed().keys
        return Bindings(keys, bool(keys), self.simulated)

    def log_ends(self) -> None:
        """Warn in the log of a roster and of certificates that end soon."""
        if (end := self.listed().end) is not None:
            trust.log_end(Path(self.roster).expanduser(), end)
        for name in self.certificates:
            trust.log_certificates(Path(name).expanduser())

    def check_admitted(self, stated: Mapping[str, int]) -> None:
        """Check that the roster, if there is one, has the clients of ``robust.admitted``."""
        keys = self.listed().keys
        for name in stated if self.roster else ():
            if name not in keys:
                raise ConfigError(unknown_name(f"client in robust.admitted (roster {self.roster})", name, keys))


class Anew(TypedDict):
    """A fresh start of a client whose node had lost its state."""

    client: ClientName
    round: Round


@dataclass
class Party:
    """The clients of a run."""

    run: RunName
    clients: list[ValidDescription]
    classes: ClassNames
    sizes: dict[str, Any] = field(default_factory=dict)  #: Of models that the server does not build, by client
    left_out: dict[str, str] = field(default_factory=dict)  #: Reason by node or client
    keys: dict[str, str] = field(default_factory=dict)
    order: Annotated[int, within(least=0, most=limits.ORDER >> REQUEST_BITS)] = 0
    #: Client and round of each fresh start after a node had lost the state
    anew: list[Anew] = field(default_factory=list)

    def to_tree(self) -> dict[str, Any]:
        """Return the party as plain values."""
        return asdict(self)

    @classmethod
    def of(cls, tree: object, experiment: Experiment) -> Party:
        """Return a party from plain values; the inverse of :meth:`to_tree`."""
        found = decode(tree, cls, error=ValueError, exact=True)
        dims = {d.name: _dim(d, experiment) for d in found.clients}
        return replace(
            found,
            sizes={name: sizes(found.sizes[name], d) for name, d in dims.items() if name in found.sizes},
            left_out={claims.clean(who): claims.clean(why) for who, why in found.left_out.items()},
            keys={name: "" for name in dims if found.keys.get(name) == ""}
            | bound({name: found.keys[name] for name in dims if found.keys.get(name)}),
        )


def meet(nodes: Nodes, experiment: Experiment, gathering: Gathering) -> Party:
    """Wait for clients and admit those that can take part together.

    Raises:
        FederationError: If too few clients arrive or are compatible.
        ConfigError: If the experiment itself does not suit the method.
    """
    least = experiment.participation.min_clients
    nodes.wait(gathering.clients or least, gathering.wait_s, least)
    if not gathering.clients:
        nodes.settle(gathering.wait_s)
    run, unfit, known = secrets.token_hex(8), dict[str, str](), dict[str, Any]()
    while True:
        candidates = [d for d in nodes.descriptions.values() if d.name not in unfit]
        admission = admit(experiment, candidates, gathering.classes)
        left_out = nodes.left_out | unfit | admission.left_out
        if len(admission.clients) < least:
            raise FederationError(
                f"{len(admission.clients)} clients fit, participation.min_clients={least} are needed: "
                + "; ".join(f"{who}: {why}" for who, why in list(left_out.items())[:5])
            )
        unknown = [d.name for d in admission.clients if _chooses(d, experiment) and d.name not in known]
        if not unknown:
            break
        answers, refused = _ask_sizes(nodes, experiment, admission, run, unknown, gathering.wait_s)
        known |= answers
        unfit |= refused
        if not refused:
            break
    for who, why in left_out.items():
        log.warning("%s: left out: %s", who, why)
    names = {d.name for d in admission.clients}
    keys = {name: key for name, key in nodes.bindings.keys.items() if name in names}
    known = {name: sizes for name, sizes in known.items() if name in names}
    return Party(run, admission.clients, admission.classes, known, left_out, keys)


def recall(
    path: Path, nodes: Nodes, experiment: Experiment, gathering: Gathering, generations: Mapping[str, str]
) -> Party:
    """Wait until enough clients of a resumed run are connected.

    Args:
        generations: Last states by client, if the run had finished; enough nodes must still have theirs.
    """
    try:
        party = Party.of(read_json(path), experiment)
    except ValueError as error:
        raise CheckpointError(f"{path}: damaged ({claims.clean(error)}): start a new run") from None
    nodes.bindings.keys = {**party.keys, **nodes.bindings.keys}
    nodes.descriptions, nodes.left_out = {d.name: d for d in party.clients}, dict(party.left_out)
    nodes.members = nodes.descriptions.keys()
    least = min(experiment.participation.min_clients, len(party.clients))
    nodes.wait(least, gathering.wait_s, least)
    if nodes.waiting:
        nodes.settle(min(gathering.wait_s, PATIENCE))
    party.left_out |= nodes.left_out
    jobs = [Job(party.run, name, 0, nodes.config, "", after=state) for name, state in generations.items()]
    lacking = {name: answer for name, answer in _ask(nodes, jobs, gathering.wait_s) if isinstance(answer, str)}
    if generations and len(generations) - len(lacking) < least:
        raise FederationError(
            f"{len(generations) - len(lacking)} clients have the state with which they ended the run, "
            f"participation.min_clients={least} are needed: "
            + "; ".join(f"{name}: {why}" for name, why in list(lacking.items())[:5])
        )
    return party


def _chooses(d: Description, experiment: Experiment) -> bool:
    """Return whether a client chooses its own model, which the server does not build."""
    return "model" in d.settings or _dim(d, experiment) != experiment.model.d


def _dim(d: Description, experiment: Experiment) -> int:
    """Return the dimension of a client's features that it chooses, or else the recipe's."""
    return int(d.settings.get("d", experiment.model.d))


def _ask_sizes(
    nodes: Nodes, experiment: Experiment, admission: Admission, run: str, names: Collection[str], wait_s: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """Ask nodes to build the models of clients; return the sizes, and the reasons of those that could not."""
    summary = FederationSummary.of(
        experiment, describe_federation(admission.clients, admission.classes, experiment.data, experiment.encoder)
    )
    texts = {d.name: text for d, text in zip(admission.clients, client_summaries(experiment, summary), strict=True)}
    dims = {d.name: _dim(d, experiment) for d in admission.clients}
    jobs = [Job(run, name, 0, nodes.config, texts[name]) for name in names]
    known: dict[str, Any] = {}
    unfit: dict[str, str] = {}
    for name, answer in _ask(nodes, jobs, wait_s):
        try:
            if isinstance(answer, str):
                unfit[name] = answer
            else:
                known[name] = read_sizes(answer, dims[name])
        except PayloadError as error:
            unfit[name] = reason_of(error)
    return known, unfit


def _ask(nodes: Nodes, jobs: Sequence[Job], wait_s: float) -> Iterator[tuple[str, Values | str]]:
    """Ask nodes about one client each; yield its name with the answer, or with the reason why there is none."""
    return nodes.ask({job.client: job.to_values() for job in jobs}, QUERY, min(max(wait_s, 1.0), PATIENCE))
