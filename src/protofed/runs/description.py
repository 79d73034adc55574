"""Classes and clients as described before training, ``federation.json``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from protofed.errors import CheckpointError
from protofed.runs.checks import are_counts, are_tables, are_texts, is_count, is_text
from protofed.runs.rules import MOST_RULES, Rule
from protofed.untrusted import limits


@dataclass(frozen=True)
class ClientDescription:
    """One client.

    Attributes:
        name: Its name.
        architecture: Name of its model's architecture.
        parameters: Size of its model.
        d: Length of its features.
        train: Training samples of each class.
        test: Test samples of each class.
        extras: Sizes of the networks that the method adds to its model.
        counts: How much it says of its numbers of samples: ``exact``, ``coarse`` or ``none``.
    """

    name: str
    architecture: str
    parameters: int
    d: int
    train: list[int]
    test: list[int]
    extras: dict[str, int] = field(default_factory=dict)
    counts: str = "exact"

    @property
    def only_class(self) -> int | None:
        """The class of all training samples; None if they are of several classes, or there is but one or none."""
        held = [label for label, n in enumerate(self.train) if n]
        return held[0] if len(held) == 1 < len(self.train) else None

    @classmethod
    def from_dict(cls, value: Any, where: str, classes: int) -> ClientDescription:
        """Return a client's description.

        Args:
            where: What errors begin with.

        Raises:
            CheckpointError: If ``value`` is something else, or does not fit the classes.
        """
        for name in ("name", "architecture", "parameters", "d", "train", "test"):
            if not isinstance(value, dict) or name not in value:
                raise CheckpointError(f"{where} lacks {name!r}")
        if not is_text(value["name"]) or not is_text(value["architecture"], limits.ARCHITECTURE):
            raise CheckpointError(f"{where}: name and architecture should be texts without control characters")
        if not all(is_count(value[name]) for name in ("parameters", "d")):
            raise CheckpointError(f"{where}: parameters and d should be whole numbers")
        extras = value.get("extras") or {}
        if not isinstance(extras, dict) or not all(is_count(size) for size in extras.values()):
            raise CheckpointError(f"{where}: extras should have whole numbers")
        counts = value.get("counts", "exact")
        if not is_text(counts):
            raise CheckpointError(f"{where}: counts should be a text")
        for name in ("train", "test"):
            if not are_counts(value[name]):
                raise CheckpointError(f"{where}: {name} should list whole numbers")
            if len(value[name]) != classes:
                raise CheckpointError(f"{where} has {len(value[name])} {name} counts for {classes} classes")
        return cls(
            value["name"],
            value["architecture"],
            value["parameters"],
            value["d"],
            value["train"],
            value["test"],
            extras,
            counts,
        )


@dataclass(frozen=True)
class FederationDescription:
    """A method's clients and classes.

    Attributes:
        class_names: Names of the ``K`` classes.
        clients: The clients in their fixed order.
        exchanges: What the method lets cross the network; ``""`` in files of the first version.
        notes: Remarks of the method on its configuration.
        bfloat16: For which models layers are computed in bfloat16.
        left_out: Clients of a network that did not take part, and why.
        network: Identifier of a run whose clients are at the nodes of a network; ``""`` of others.
        rules: The method's rules by name; none in files of version 0.2.
        open_rule: The rule for clients with samples of one class; ``""`` if the method has none.
    """

    class_names: list[str]
    clients: list[ClientDescription]
    exchanges: str = ""
    notes: list[str] = field(default_factory=list)
    bfloat16: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    network: str = ""
    rules: dict[str, Rule] = field(default_factory=dict)
    open_rule: str = ""

    @classmethod
    def from_dict(cls, value: dict[str, Any], where: str) -> FederationDescription:
        """Return the content of ``federation.json``.

        Args:
            where: What errors begin with.

        Raises:
            CheckpointError: If a part is missing, of another kind, too large, or does not fit the others.
        """
        for name in ("class_names", "clients"):
            if not isinstance(value.get(name), list):
                raise CheckpointError(f"{where}: lacks the list {name!r}")
        K, M = len(value["class_names"]), len(value["clients"])
        if K > limits.CLASSES or M > limits.CLIENTS:
            raise CheckpointError(
                f"{where}: {K} classes and {M} clients: at most {limits.CLASSES} and {limits.CLIENTS} are shown"
            )
        if not all(is_text(name) for name in value["class_names"]):
            raise CheckpointError(f"{where}: class names should be texts without control characters")
        notes, exchanges, bfloat16 = value.get("notes", []), value.get("exchanges", ""), value.get("bfloat16", [])
        declared, older = value.get("rules", []), value.get("open_rule", "")
        if not are_texts(notes) or not isinstance(exchanges, str) or not is_text(older):
            raise CheckpointError(f"{where}: notes, exchanges and open_rule should be texts")
        if not isinstance(declared, list) or len(declared) > MOST_RULES:
            raise CheckpointError(f"{where}: rules should be a list of at most {MOST_RULES}")
        rules = {rule.name: rule for rule in (Rule.from_dict(each, where) for each in declared)}
        open_rule = next((rule.name for rule in rules.values() if rule.open), older)
        network = value.get("network", {"run": ""})
        if not isinstance(network, dict) or not is_text(network.get("run")):
            raise CheckpointError(f"{where}: network should name a run")
        if not are_texts(bfloat16):
            raise CheckpointError(f"{where}: bfloat16 should list names of models")
        left_out = value.get("left_out", [])
        if not are_tables(left_out, ["client", "reason"]):
            raise CheckpointError(f"{where}: left_out should list clients and reasons")
        clients = [
            ClientDescription.from_dict(client, f"{where}: client {number}", K)
            for number, client in enumerate(value["clients"], start=1)
        ]
        if len({client.name for client in clients}) < M:
            raise CheckpointError(f"{where}: two clients have the same name")
        refused = {entry["client"]: entry["reason"] for entry in left_out}
        return cls(
            value["class_names"],
            clients,
            exchanges,
            notes,
            bfloat16,
            refused,
            network["run"],
            rules,
            open_rule,
        )
