"""Helpers of methods that share weights: choosing, loading, describing and averaging sets of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from protofed.errors import ConfigError, unknown_name
from protofed.methods.contract import SplitModel, Task, Tensors, every_parameter
from protofed.wire.schema import Field, Payload, Schema

Select = Callable[[str], bool]  #: Chooses weights by their names in the model


def first_model(task: Task) -> SplitModel:
    """Return the model whose weights open the first round."""
    assert task.template is not None
    return task.template()


def select_weights(model: nn.Module, select: Select = every_parameter, *, buffers: bool) -> Tensors:
    """Return detached references to the selected weights of a model.

    Args:
        buffers: Whether to include floating-point buffers (BatchNorm's running statistics); integer ones never are.
    """
    tensors = dict(model.named_parameters())
    if buffers:
        tensors |= {n: b for n, b in model.named_buffers() if b.is_floating_point()}  # type: ignore[misc]
    return {name: tensor.detach() for name, tensor in tensors.items() if select(name)}


def copy_tensors(weights: Mapping[str, Tensor]) -> Tensors:
    """Return copies of all tensors."""
    return {name: tensor.clone() for name, tensor in weights.items()}


def under(prefix: str, tensors: Mapping[str, Tensor]) -> Tensors:
    """Return the tensors whose names begin with ``prefix``, by the rest of their names."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy weights into a model's parameters and buffers of the same names."""
    targets = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad():
        for name, tensor in weights.items():
            targets[name].copy_(tensor)


def with_samples(schema: Schema, weighting: str, **fields: Field) -> Schema:
    """Extend a schema by further fields and the client's number of samples ``n_i``.

    Args:
        weighting: ``samples`` if the server weights real numbers by them; anything else for the plain mean.
    """
    more = {**schema.fields, **fields}
    if weighting == "samples":
        more |= {n: replace(f, weight="samples") for n, f in more.items() if f.kind == "real" and not f.sums}
    samples = Field((), "count", parameter=False)
    return Schema({**more, "samples": samples}, schema.num_classes, schema.sizes, schema.limits)


def weight_of(payload: Payload, weighting: str) -> float:
    """Return a client's weight in the mean: its ``n_i`` for ``samples``, otherwise 1."""
    return int(payload["samples"]) if weighting == "samples" else 1.0


class WeightedMean:
    """Weighted mean of sets of weights that are seen once, one at a time; sums in float64."""

    def __init__(self) -> None:
        self.sums: Tensors = {}
        self.total = 0.0

    def add(self, weights: Mapping[str, Tensor], weight: float) -> None:
        """Add the weights of a client."""
        if weight == 0:
            return
        self.total += weight
        for name, tensor in weights.items():
            if name in self.sums:
                self.sums[name].add_(tensor, alpha=weight)
            else:
                self.sums[name] = tensor.double() * weight

    def mean(self, otherwise: Tensors) -> Tensors:
        """Return the mean in the dtype of ``otherwise``, or ``otherwise`` if nothing was added."""
        if not self.total:
            return otherwise
        return {n: (self.sums[n] / self.total).to(old.dtype) for n, old in otherwise.items()}


def within(parts: Sequence[str]) -> Select:
    """Return a filter for the weights of modules, e.g. ``extractor.map`` and ``head``, and of all below them."""
    return lambda name: any(name == part or name.startswith(f"{part}.") for part in parts)


def check_parts(option_name: str, parts: Sequence[str], model: nn.Module) -> None:
    """Check that each part names a module of a model that has weights."""
    candidates = [n for n, m in model.named_modules() if n and any(True for _ in m.parameters())]
    for part in parts:
        if part not in candidates:
            raise ConfigError(unknown_name(f"module in {option_name}", part, candidates))


def sharing_notes(model: nn.Module, select: Select, buffers: bool) -> tuple[str, ...]:
    """Return sentences about how much of a model is shared, and where BatchNorm's running statistics stay."""
    total = sum(p.numel() for p in model.parameters())
    shared = sum(p.numel() for n, p in model.named_parameters() if select(n))
    sentences = [f"{shared:,} of the {total:,} parameters of a model are shared."]
    if any(select(n) for n, b in model.named_buffers() if b.is_floating_point()):
        place = "are averaged with the weights" if buffers else "stay on each client"
        sentences.append(f"BatchNorm's running statistics {place}.")
    return tuple(sentences)
