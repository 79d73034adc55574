"""Uploads as vectors of whole numbers of one length, whose sum is all that a method's server needs.

Rows of classes become a table of all ``K`` classes with zeros for the absent ones, so that a vector does not show
which classes its sender holds. What the server weights by a number of samples is multiplied by it before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from protofed.errors import ConfigError, FederationError, PayloadError
from protofed.methods.contract import Method
from protofed.stages.privacy.noise import BITS, Vector
from protofed.wire.schema import Field, Payload
from protofed.wire.validate import COUNT_LIMIT


@dataclass(frozen=True)
class _FieldPlace:
    """A field of an upload in the vector."""

    name: str
    field: Field
    shape: tuple[int, ...]  # that of the table for rows of classes
    labels: str  # field of the rows' classes; "" unless it has one row per class
    weight: str  # field of counts; "" for none

    @property
    def size(self) -> int:
        return math.prod(self.shape)


class SumLayout:
    """The vector of a method's uploads."""

    def __init__(self, method: Method, fraction_bits: int) -> None:
        schema, hint = method.upload_schema, "choose another method, or secure.aggregation=false"
        self.method, self.unit = method, 2.0**fraction_bits
        self.clients = max(1, method.task.clients)
        if schema is not None and method.declared.aggregation != "sums":
            raise ConfigError(
                f"secure.aggregation reveals sums only, but {method.name} needs single uploads: {hint}"
            )
        self.entries: list[_FieldPlace] = []
        fields = schema.fields if schema is not None else {}
        symbols = schema.sizes if schema is not None else {}
        rows = {f.shape[0]: n for n, f in fields.items() if f.kind == "label" and f.unique and len(f.shape) == 1}
        K = method.task.num_classes
        for name, field in fields.items():
            first = field.shape[0] if field.shape else ""
            labels = rows.get(first, "")
            shape = [K if labels and i == 0 else symbols.get(str(s), s) for i, s in enumerate(field.shape)]
            if not all(isinstance(s, int) for s in shape) or (field.kind == "label" and not labels):
                raise ConfigError(
                    f"secure.aggregation adds uploads of one size, but the {name} of {method.name} vary: {hint}"
                )
            self.entries.append(_FieldPlace(name, field, tuple(int(s) for s in shape), labels, field.weight))
        self.length = sum(e.size for e in self.entries)
        self.reals = sum(e.size for e in self.entries if e.field.kind == "real")

    def encode(self, payload: Payload) -> Vector:
        """Return the vector of a valid upload."""
        parts = []
        most = 2.0**BITS / self.clients
        for entry in self.entries:
            values = self._weigh(entry, payload)
            if entry.field.kind == "real":
                values = (values * self.unit).round()
            if values.numel() and float(values.abs().max()) >= most:
                largest = float(values.abs().max()) / (self.unit if entry.field.kind == "real" else 1)
                raise PayloadError(
                    f"{entry.name}: {largest:g} would overflow the sum of {self.clients} clients: lower "
                    "secure.fraction_bits",
                    code="overflow",
                )
            parts.append(values.to(torch.int64).flatten().numpy().view(np.uint64))
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint64)

    def _weigh(self, entry: _FieldPlace, payload: Payload) -> Tensor:
        """Return a field's numbers in float64, dense and times their weight; 1 for a class that is present."""
        classes = payload[entry.labels] if entry.labels else None
        if entry.field.kind == "label":
            assert classes is not None
            return torch.zeros(entry.shape, dtype=torch.float64).index_fill(0, classes, 1.0)
        values = payload[entry.name].detach().cpu().double()
        if entry.weight:
            weight = payload[entry.weight].cpu().double()
            values = values * weight.reshape(weight.shape + (1,) * (values.dim() - weight.dim()))
        if classes is None:
            return values
        return torch.zeros(entry.shape, dtype=torch.float64).index_copy(0, classes, values)

    def decode(self, total: Vector, clients: int) -> list[Payload]:
        """Return as many equal uploads as there are clients, which have the given sum.

        A class that fewer clients report is in as many of them. A method that needs sums only makes the same of
        them as of the clients' own.
        """
        sums: dict[str, Tensor] = {}
        start = 0
        for entry in self.entries:
            part = torch.from_numpy(total[start : start + entry.size].view(np.int64).copy()).reshape(entry.shape)
            start += entry.size
            sums[entry.name] = part.double() / self.unit if entry.field.kind == "real" else part
            most = clients if entry.field.kind == "label" else clients * (COUNT_LIMIT - 1)
            if entry.field.kind != "real" and len(wrong := part[(part < 0) | (part > most)]):
                raise PayloadError(f"{entry.name}: sums must be from 0 to {most}, not {int(wrong[0])}")
        return [self._share(sums, number, clients) for number in range(clients)]

    def _share(self, sums: Mapping[str, Tensor], number: int, clients: int) -> Payload:
        """Return the upload of one of the clients that are all alike."""
        payload: Payload = {}
        for entry in self.entries:
            value = sums[entry.name]
            reporters = sums[entry.labels] if entry.labels else torch.full(value.shape[:1], clients)
            chosen = (reporters > number).nonzero().squeeze(-1) if entry.labels else None
            if entry.field.kind == "label":
                payload[entry.name] = (value > number).nonzero().squeeze(-1)
                continue
            if entry.field.kind == "count":
                among = reporters.clamp(min=1) if entry.labels else torch.tensor(clients)
                value = value // among + (value % among > number).long()
            else:
                weight = sums[entry.weight].double() if entry.weight else reporters.double()
                if not entry.weight and not entry.labels:
                    weight = torch.tensor(float(clients), dtype=torch.float64)
                weight = weight.reshape(weight.shape + (1,) * (value.dim() - weight.dim()))
                value = torch.where(weight > 0, value / weight.where(weight > 0, 1.0), 0.0)
                if entry.field.minimum is not None:
                    value = value.clamp(min=entry.field.minimum)
            payload[entry.name] = value if chosen is None else value[chosen]
        return payload


class SecureAggregationError(FederationError):
    """A sum that could not be read; nothing of it is used."""


def require_enough(present: int, threshold: int, what: str, why: Mapping[str, str]) -> None:
    """Raise SecureAggregationError if a round has fewer clients than its threshold.

    Args:
        what: Their progress, as ``sent keys``.
        why: Reasons for others, of which the last two are named.
    """
    if present < threshold:
        reasons = "".join(f"; {name}: {reason}" for name, reason in [*why.items()][-2:])
        raise SecureAggregationError(
            f"secure aggregation: {present} of the {threshold} clients needed {what} (secure.threshold){reasons}"
        )


_SESSION, _KEY, _COMMITMENT = 16, 215, 32
"""Bytes of the number of a round, of a public key of P-384 as PEM, and of a commitment."""
_SHARES = (52, 68)  #: Bytes of a share of a mask seed, and of a private key


def traffic(clients: Sequence[str], length: int) -> tuple[int, int]:
    """Return the bytes down and up of a round without dropouts or signatures; numbers have 8 bytes."""
    n, sizes = len(clients), [len(name.encode()) for name in clients]
    names, others = sum(sizes), (n - 1) * sum(sizes)
    plain = [_SESSION + 7 + a + b + sum(_SHARES) for i, a in enumerate(sizes) for b in sizes[:i] + sizes[i + 1 :]]
    # A sealed box is Fernet's: 25 bytes and 32 around whole blocks of 16, in base64.
    boxes = others + sum(4 * -(-(57 + 16 * (size // 16 + 1)) // 3) for size in plain)
    down = n * (_SESSION + 16) + n * (_SESSION + names + 2 * _KEY * n) + n * _SESSION + boxes
    down += 2 * n * (_SESSION + names)
    up = n * (2 * _KEY + _SESSION) + n * (_COMMITMENT + _SESSION) + boxes
    return down, up + n * (8 * length + _SESSION) + n * _SESSION + n * (n * _SHARES[0] + _SESSION)
