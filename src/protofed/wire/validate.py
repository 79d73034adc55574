"""Validation of payloads against their schemas; invalid payloads never reach an aggregate."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from protofed.errors import DivergedError, PayloadError
from protofed.wire.schema import Field, Payload, Schema

COUNT_LIMIT = 2**32


def check_structure(payload: Payload, schema: Schema) -> dict[str, int]:
    """Check the names, kinds and shapes of tensors; return the values of all symbols."""
    for name in schema.fields:
        if name not in payload:
            raise PayloadError(f"{name}: missing")
    for name in payload:
        if name not in schema.fields:
            raise PayloadError(f"{name}: not part of the schema ({', '.join(schema.fields)})")
    symbols = dict(schema.sizes)
    for name, field in schema.fields.items():
        _check_shape(name, payload[name], field, symbols, schema)
    return symbols


def check_values(payload: Payload, schema: Schema) -> None:
    """Check the values of tensors whose structure is valid."""
    for name, field in schema.fields.items():
        tensor = payload[name]
        if field.kind == "label":
            _check_labels(name, tensor, field, schema.num_classes)
        elif field.kind == "count":
            if tensor.numel() and (tensor.min() < 0 or tensor.max() >= COUNT_LIMIT):
                raise PayloadError(f"{name}: counts must lie in [0, {COUNT_LIMIT})")
        elif tensor.numel():
            largest = tensor.abs().max()  # NaN if any number is NaN
            if not math.isfinite(largest):
                raise DivergedError(f"{name}: contains {'NaN' if math.isnan(largest) else 'infinite values'}")
            if largest > field.limit:  # compares in the tensor's dtype, to which the limit may have been rounded
                raise DivergedError(f"{name}: magnitudes may be at most {field.limit:g}")
        if field.minimum is not None and tensor.numel() and tensor.min() < field.minimum:
            raise PayloadError(f"{name}: values must be at least {field.minimum}, found {tensor.min():g}")


def _check_shape(name: str, tensor: Tensor, field: Field, symbols: dict[str, int], schema: Schema) -> None:
    """Check one field's kind and shape, and bind symbols that are not bound yet."""
    neither = tensor.is_complex() or tensor.dtype == torch.bool
    if neither or (field.kind == "real") != tensor.is_floating_point():
        raise PayloadError(f"{name}: must be {field.kind}, not {str(tensor.dtype).removeprefix('torch.')}")
    if tensor.dim() != len(field.shape):
        raise PayloadError(f"{name}: must have shape {field.shape}, not {tuple(tensor.shape)}")
    for size, symbol in zip(tensor.shape, field.shape, strict=True):
        expected = symbol if isinstance(symbol, int) else symbols.setdefault(symbol, size)
        if size != expected:
            raise PayloadError(f"{name}: {symbol} must be {expected}, but the shape is {tuple(tensor.shape)}")
        if isinstance(symbol, str) and size > schema.limits.get(symbol, size):
            raise PayloadError(f"{name}: {symbol} may be at most {schema.limits[symbol]}, not {size}")


def _check_labels(name: str, labels: Tensor, field: Field, num_classes: int) -> None:
    if not labels.numel():
        return
    if labels.min() < 0 or labels.max() >= num_classes:
        bad = labels[(labels < 0) | (labels >= num_classes)][0]
        raise PayloadError(f"{name}: unknown class {int(bad)}, classes are 0 to {num_classes - 1}")
    if field.unique and (labels.diff() <= 0).any():
        raise PayloadError(f"{name}: classes must be distinct and ascending")
