"""Classes and clients as described before training, ``federation.json``."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from protofed.errors import CheckpointError
from protofed.runs.findings import LeftOut
from protofed.runs.rules import COLOURS, MOST_RULES, Rule
from protofed.untrusted import limits
from protofed.untrusted.decoding import Count, Line, decode, line

if TYPE_CHECKING:
    ArchitectureName = str
else:
    ArchitectureName = line(limits.ARCHITECTURE)


@dataclass(frozen=True)
class ClientDescription:
    """One client."""

    name: Line
    architecture: ArchitectureName
    parameters: Count  #: Of its model
    d: Count
    train: list[Count]  #: Samples of each class
    test: list[Count]  #: Samples of each class
    extras: dict[str, Count] = field(default_factory=dict)
    counts: Line = "exact"  #: ``exact``, ``coarse`` or ``none``

    @property
    def only_class(self) -> int | None:
        """The class of all training samples; None if they are of several classes, or there is but one or none."""
        held = [label for label, n in enumerate(self.train) if n]
        return held[0] if len(held) == 1 < len(self.train) else None


@dataclass(frozen=True)
class FederationDescription:
    """A method's clients and classes."""

    class_names: list[str]
    clients: list[ClientDescription]
    exchanges: str = ""  #: In words
    notes: list[str] = field(default_factory=list)  #: Of the method on its configuration
    bfloat16: list[str] = field(default_factory=list)  #: Models with layers in bfloat16
    #: Reason for each client of a network that did not take part
    left_out: dict[str, str] = field(default_factory=dict)
    network: str = ""  #: Of a run whose clients are at the nodes of a network; ``""`` of others
    rules: dict[str, Rule] = field(default_factory=dict)
    open_rule: str = ""  #: For clients with samples of one class; ``""`` if the method has none
    tests: str = ""  #: Hash of all clients' test samples; ``""`` where they are not at hand

    @classmethod
    def from_dict(cls, value: dict[str, Any], where: str) -> FederationDescription:
        """Return the content of ``federation.json``."""
        found = decode(value, _Written, where)
        K = len(found.class_names)
        for number, client in enumerate(found.clients, start=1):
            for name, counts in (("train", client.train), ("test", client.test)):
                if (n := len(counts)) != K:
                    raise CheckpointError(f"{where}: client {number} has {n} {name} counts for {K} classes")
        if len({client.name for client in found.clients}) < len(found.clients):
            raise CheckpointError(f"{where}: two clients have the same name")
        parts = {name: getattr(found, name) for name in found.__struct_fields__}
        left_out = {entry.client: entry.reason for entry in found.left_out}
        rules = {r.name: r if r.colour in COLOURS else replace(r, colour="") for r in found.rules}
        open_rule = next((rule.name for rule in rules.values() if rule.open), found.open_rule)
        own = {"left_out": left_out, "network": found.network.run, "rules": rules, "open_rule": open_rule}
        return cls(**{**parts, **own})


class _Network(Struct, frozen=True):
    run: Line = ""


class _Written(Struct):
    """The content of ``federation.json``; what has a default may be missing."""

    class_names: Annotated[list[Line], Meta(max_length=limits.CLASSES)]
    clients: Annotated[list[ClientDescription], Meta(max_length=limits.CLIENTS)]
    exchanges: str = ""
    notes: list[str] = []
    bfloat16: list[str] = []
    left_out: list[LeftOut] = []
    network: _Network = _Network()
    rules: Annotated[list[Rule], Meta(max_length=MOST_RULES)] = []
    open_rule: Line = ""
    tests: Line = ""
