"""Rare classes, which a client does not report: the mean of few samples is nearly a sample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from protofed.methods.contract import Method
from protofed.wire.schema import Field, Payload, Schema


def without_rare(payload: Payload, schema: Schema, counts: Tensor, least: int, received: Payload) -> Payload:
    """Return an upload that reports no class of fewer than ``least`` training samples.

    Rows with labels are left out. Of tables with one row per class, sums and counts become 0, and other rows are
    what the client received.
    """
    rare = (counts < least).cpu()
    if not bool(rare.any()):
        return payload
    kept = {
        f.shape[0]: ~rare[payload[name].cpu()] for name, f in schema.fields.items() if f.kind == "label" and f.shape
    }
    result = dict(payload)
    for name, field in schema.fields.items():
        tensor = payload[name]
        if field.shape and field.shape[0] in kept:
            result[name] = tensor[kept[field.shape[0]].to(tensor.device)]
        elif _is_table(field, schema.num_classes):
            hidden = rare.to(tensor.device).reshape(-1, *[1] * (tensor.dim() - 1))
            plain = torch.zeros_like(tensor) if field.sums or field.kind == "count" else received[name].to(tensor)
            result[name] = torch.where(hidden, plain, tensor)
    return result


def notes(method: Method, least: Sequence[int]) -> list[str]:
    """Describe the treatment of rare classes in a sentence for a report, given each client's ``least_samples``."""
    schema, most = method.upload_schema, max(least, default=0)
    if most < 2 or schema is None:
        return []
    if not any(f.kind == "label" or _is_table(f, schema.num_classes) for f in schema.fields.values()):
        return [f"least_samples has no effect: {method.name} reports no single classes."]
    number = str(most) if len(set(least)) == 1 else f"{min(least)} to {most}"
    return [f"Clients report no class of which they have fewer than {number} training samples."]


def _is_table(field: Field, num_classes: int) -> bool:
    """Return whether a field without labels has a row for each class that describes the client's samples."""
    counts = field.kind == "count" and field.shape == (num_classes,)
    return field.sums or field.by_class or counts
