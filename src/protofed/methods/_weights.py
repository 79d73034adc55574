"""What methods that share weights have in common: choosing, loading and averaging sets of them.

The methods differ in which weights cross the network, in what clients minimise, and in what becomes of the mean;
their own files say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from protofed.errors import ConfigError, unknown_name
from protofed.methods.contract import Aggregate, Batch, Exchange, Local, Method, Tensors, Upload, every_parameter
from protofed.options import option
from protofed.prototypes.inference import most_likely
from protofed.wire.schema import Field, Payload, Schema, weight_schema

if TYPE_CHECKING:
    from protofed.models import SplitModel


def shared_weights(model: nn.Module, select: Callable[[str], bool] = every_parameter, *, buffers: bool) -> Tensors:
    """Return detached references to the selected parameters, and the floating-point buffers if asked.

    Integer buffers (BatchNorm's batch counter) are never shared.
    """
    tensors = dict(model.named_parameters())
    if buffers:
        tensors |= {n: b for n, b in model.named_buffers() if b.is_floating_point()}  # type: ignore[misc]
    return {name: tensor.detach() for name, tensor in tensors.items() if select(name)}


def load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy ``weights`` into the model's parameters and buffers of the same names."""
    own = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad():
        for name, tensor in weights.items():
            own[name].copy_(tensor)


class WeightedMean:
    """Weighted mean of sets of weights that are seen once, one at a time; sums in float64."""

    def __init__(self) -> None:
        self.sums: Tensors = {}
        self.total = 0.0

    def add(self, weights: Mapping[str, Tensor], weight: float) -> None:
        """Add one client's weights."""
        if weight == 0:
            return
        self.total += weight
        for name, tensor in weights.items():
            if name in self.sums:
                self.sums[name].add_(tensor, alpha=weight)
            else:
                self.sums[name] = tensor.double() * weight

    def mean(self, otherwise: Tensors) -> Tensors:
        """Return the mean in the dtype of ``otherwise``, or ``otherwise`` where nothing was added."""
        if not self.total:
            return otherwise
        return {n: (self.sums[n] / self.total).to(old.dtype) for n, old in otherwise.items()}


def within(parts: Sequence[str]) -> Callable[[str], bool]:
    """Return what selects the weights of modules, e.g. ``extractor.map`` and ``head``, and all below them."""
    return lambda name: any(name == part or name.startswith(f"{part}.") for part in parts)


def check_parts(option_name: str, parts: Sequence[str], model: nn.Module) -> None:
    """Raise ConfigError unless each of ``parts`` names a module of ``model`` that has weights."""
    having = [n for n, m in model.named_modules() if n and any(True for _ in m.parameters())]
    for part in parts:
        if part not in having:
            raise ConfigError(unknown_name(f"module in {option_name}", part, having))


@dataclass(frozen=True)
class WeightOptions:
    """How the server averages."""

    weighting: Literal["samples", "uniform"] = option("samples", "weight of a client in the mean: n_i, or 1")
    share_buffers: bool = option(
        True, "BatchNorm's running statistics are averaged as the weights are; otherwise they stay on the client"
    )


class WeightMethod(Method):
    """Clients send the weights that :meth:`shares` selects; the server sends back their mean.

    Server state: those weights, by their names in the model.
    """

    exchanges: Exchange = "part of the weights"
    same_architecture = True
    Options = WeightOptions

    @classmethod
    def needs_counts(cls, options: Any) -> bool:
        """Every upload holds ``n_i``."""
        return True

    def shares(self, name: str) -> bool:
        """Whether the weight called ``name`` crosses the network."""
        return True

    # What crosses the network.

    def first_model(self) -> SplitModel:
        """Return the model whose weights open the first round."""
        assert self.task.template is not None
        return self.task.template()

    @cached_property
    def initial(self) -> Tensors:
        """What the server starts from."""
        weights = shared_weights(self.first_model(), self.shares, buffers=self.options.share_buffers)
        return {n: w.clone() for n, w in weights.items()}

    @cached_property
    def broadcast_schema(self) -> Schema:
        """The shared weights."""
        return weight_schema(self.initial, self.task.num_classes)

    @cached_property
    def upload_schema(self) -> Schema:
        """The shared weights, and one sample count."""
        return self.with_samples(self.broadcast_schema)

    def with_samples(self, schema: Schema, **more: Field) -> Schema:
        """Return ``schema`` with ``n_i`` and further fields."""
        fields = {**schema.fields, **more, "samples": Field((), "count", parameter=False)}
        return Schema(fields, self.task.num_classes)

    def notes(self) -> tuple[str, ...]:
        """Say how much of the model is shared, and what becomes of BatchNorm's running statistics."""
        model = self.first_model()
        total = sum(p.numel() for p in model.parameters())
        shared = sum(p.numel() for n, p in model.named_parameters() if self.shares(n))
        statistics = [n for n, b in model.named_buffers() if b.is_floating_point()]
        said = [f"{shared:,} of the {total:,} parameters of a model are shared."]
        if any(self.shares(n) for n in statistics):
            averaged = "are averaged with the weights" if self.options.share_buffers else "stay on each client"
            said.append(f"BatchNorm's running statistics {averaged}.")
        return tuple(said)

    # The client.

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Take over the shared weights; the rest of the model is the client's own."""
        if message is not None:
            load_weights(local.model, message)
        return {}

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send the shared weights of ``w_i``, and ``n_i``."""
        weights = shared_weights(local.model, self.shares, buffers=self.options.share_buffers)
        return {**weights, "samples": local.counts.sum()}

    # The server.

    def server_state(self) -> Tensors:
        """Start from one initial model."""
        return dict(self.initial)

    def broadcast(self, server: Tensors, round: int, client: str | None = None) -> Payload:
        """Send the shared weights."""
        return {name: server[name] for name in self.broadcast_schema.fields}

    def weight_of(self, payload: Payload) -> float:
        """Return a client's weight in the mean."""
        return int(payload["samples"]) if self.options.weighting == "samples" else 1.0

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """``w^{t+1} = Σ_i (n_i / Σ n)·w_i`` over the clients of this round; nobody: keep ``w^t``."""
        mean = WeightedMean()
        for upload in uploads:
            weights = {n: w for n, w in upload.payload.items() if n != "samples"}
            mean.add(weights, self.weight_of(upload.payload))
        return Aggregate(mean.mean(server), {})


class GlobalModelMethod(WeightMethod):
    """The server has a whole model, from which every client starts its round.

    The client's own model is what its last training left behind; what it received is the global model. Both are
    scored: rules ``head`` and ``global_model``.
    """

    exchanges: Exchange = "all weights"
    class_sets = "one K-way head"
    up = "|w|"
    down = "|w|"

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Keep the global weights ``w^t`` beside the client's own; before there are any, its own."""
        if message is not None:
            return dict(message)
        own = shared_weights(local.model, self.shares, buffers=self.options.share_buffers)
        return {n: w.clone() for n, w in own.items()}

    def global_weights(self, received: Tensors) -> Tensors:
        """Return the weights among what was received."""
        return {n: received[n] for n in self.initial}

    def begin(self, local: Local) -> None:
        """Start from ``w^t``."""
        load_weights(local.model, self.global_weights(local.received))

    @property
    def rules(self) -> tuple[str, ...]:
        """The model that was received, and the client's own."""
        return ("global_model", "head")

    def classify(self, model: Any, batch: Batch, received: Tensors) -> Tensor:
        """Return the logits ``(B, K)`` of a model."""
        logits: Tensor = model(batch.x).logits
        return logits

    def predict(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Argmax of the classifier of either model."""
        theirs = _With(model, self.global_weights(received))
        return {
            "global_model": most_likely(self.classify(theirs, batch, received)),
            "head": most_likely(self.classify(model, batch, received)),
        }


class _With:
    """A model as it is with other weights, for forward passes."""

    def __init__(self, model: SplitModel, weights: Tensors) -> None:
        self.model = model
        self.weights = weights

    def __call__(self, x: Tensor) -> Any:
        return functional_call(self.model, self.weights, (x,))
