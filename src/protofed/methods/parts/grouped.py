"""Closed forms of clients with different encoders: sums are exact within a group, which has one encoder.

A method of the same kind serves each group. Messages have the fields of all groups, ``FIELD|GROUP``, and only those
of the client's own are not empty. The server's state has the names ``GROUP|NAME``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from protofed.methods.contract import Aggregate, Batch, Local, Method, Round, Statistics, Task, Tensors, Upload
from protofed.methods.parts.moments import ClosedForm
from protofed.methods.parts.weights import under
from protofed.wire.schema import Field, Payload, Schema

if TYPE_CHECKING:
    from protofed.models import SplitModel


class Grouped(Method[Any]):
    """One closed form per group of clients, of which each hears from its own alone.

    Args:
        widths: Length of the features of each group; a client's is the ``group`` of its model.
    """

    def __init__(self, kind: type[ClosedForm[Any]], options: Any, task: Task, widths: Sequence[int]) -> None:
        self.groups = [kind(options, replace(task, feature_dim=width)) for width in widths]
        self.base = self.groups[0]
        self.options, self.task = options, task
        for attribute in ("name", "summary", "reference"):
            setattr(self, attribute, getattr(kind, attribute))
        more = "its server makes one classifier per encoder"
        self.declared = replace(kind.traits(options), sums_only=False, personal=True, beyond_means=more, vector={})

    def check(self, clients: Mapping[str, bool]) -> None:
        """As the groups' method; so are all parts of a client's round that do not depend on features."""
        self.base.check(clients)

    def notes(self) -> tuple[str, ...]:
        """As the groups' method."""
        return self.base.notes()

    # What crosses the network.

    @property
    def upload_schema(self) -> Schema | None:
        """The uploads of all groups."""
        return _beside([group.upload_schema for group in self.groups])

    @property
    def broadcast_schema(self) -> Schema | None:
        """The broadcasts of all groups."""
        return _beside([group.broadcast_schema for group in self.groups])

    # The client.

    def round(self, number: int) -> Round:
        """As the groups' method."""
        return self.base.round(number)

    @property
    def statistics(self) -> Statistics | None:
        """As the groups' method."""
        return self.base.statistics

    def client_state(self, counts: Tensor) -> Tensors:
        """As the groups' method."""
        return self.base.client_state(counts)

    def shifted(self, state: Tensors, counts: Tensor) -> Tensors:
        """As the groups' method."""
        return self.base.shifted(state, counts)

    def extend(self, model: SplitModel) -> None:
        """As the group's method."""
        self.groups[model.group].extend(model)

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Unpack what the client's group was sent."""
        group = local.model.group
        schema = self.groups[group].broadcast_schema
        own = None if message is None or schema is None else _part(message, schema, group)
        return self.groups[group].receive(local, own)

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send what the group's method sends."""
        group = local.model.group
        schemas = [each.upload_schema for each in self.groups]
        return _whole({group: self.groups[group].upload(local, statistics)}, schemas, self.task.dtype)

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """As the group's method."""
        return self.groups[model.group].scores(model, batch, received, state)

    # The server.

    def server_state(self) -> Tensors:
        """Return the states of all groups."""
        return _named([group.server_state() for group in self.groups])

    def broadcast(self, server: Tensors, round: int, client: str | None = None) -> Payload | None:
        """Send the classifier of the client's group; of all groups as long as the server does not know it."""
        states = [under(f"{number}|", server) for number in range(len(self.groups))]
        known = [any(n.partition(".")[2].rpartition("/")[0] == client for n in state) for state in states]
        found = {
            number: payload
            for number, group in enumerate(self.groups)
            if (known[number] or not any(known))
            and (payload := group.broadcast(states[number], round, client)) is not None
        }
        schemas = [group.broadcast_schema for group in self.groups]
        return _whole(found, schemas, self.task.dtype) if found else None

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """Aggregate each group by itself; an upload counts in the first group of which it has anything."""
        dealt: dict[int, list[Upload]] = {}
        for client, payload in uploads:
            for number, group in enumerate(self.groups):
                assert group.upload_schema is not None
                if (own := _part(payload, group.upload_schema, number)) is not None:
                    dealt.setdefault(number, []).append(Upload(client, own))
                    break
        states: list[Tensors] = []
        diagnostics: dict[str, Any] = {}
        for number, group in enumerate(self.groups):
            state = under(f"{number}|", server)
            if number in dealt:
                state, found = group.aggregate(state, iter(dealt[number]), round)
                diagnostics |= {f"{name}|{number}": value for name, value in found.items()}
            states.append(state)
        return Aggregate(_named(states), diagnostics)


def _varies(field: Field, schema: Schema) -> bool:
    """Return whether a field may have no rows."""
    return bool(field.shape) and field.shape[0] in schema.limits


def _beside(schemas: Sequence[Schema | None]) -> Schema | None:
    """Return the schema of a message with the fields of all groups; those that were always there may be missing."""
    fields: dict[str, Field] = {}
    sizes: dict[str, int] = {}
    limits: dict[str, int] = {}
    K = 0
    for group, schema in enumerate(schemas):
        if schema is None:
            return None
        K = schema.num_classes
        for name, field in schema.fields.items():
            shape = tuple(size if isinstance(size, int) else f"{size}|{group}" for size in field.shape)
            row = () if _varies(field, schema) else (f"there|{group}",)
            fields[f"{name}|{group}"] = replace(field, shape=(*row, *shape))
        sizes |= {f"{symbol}|{group}": size for symbol, size in schema.sizes.items()}
        limits |= {f"{symbol}|{group}": most for symbol, most in schema.limits.items()} | {f"there|{group}": 1}
    return Schema(fields, K, sizes, limits)


def _whole(found: Mapping[int, Payload], schemas: Sequence[Schema | None], dtype: torch.dtype) -> Payload:
    """Return a message with the fields of all groups."""
    message: Payload = {}
    for group, schema in enumerate(schemas):
        assert schema is not None
        for name, field in schema.fields.items():
            if group in found:
                tensor = found[group][name]
                message[f"{name}|{group}"] = tensor if _varies(field, schema) else tensor.unsqueeze(0)
                continue
            rest = field.shape[1:] if _varies(field, schema) else field.shape
            shape = [size if isinstance(size, int) else schema.sizes[size] for size in rest]
            kind = dtype if field.kind == "real" else torch.int64
            message[f"{name}|{group}"] = torch.zeros(0, *shape, dtype=kind)
    return message


def _part(message: Payload, schema: Schema, group: int) -> Payload | None:
    """Return the payload of a group, or None."""
    own = {name: message[f"{name}|{group}"] for name in schema.fields}
    always = [name for name, field in schema.fields.items() if not _varies(field, schema)]
    if not all(len(own[name]) for name in always or ["classes"]):
        return None
    return {**own, **{name: own[name][0] for name in always}}


def _named(states: Sequence[Tensors]) -> Tensors:
    """Return the states of all groups as one."""
    return {f"{group}|{name}": tensor for group, state in enumerate(states) for name, tensor in state.items()}
