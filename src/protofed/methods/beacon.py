"""Beacon: a network as small as a set of prototypes takes their place.

A method of this library's own. On skewed data, exchanging prototypes hardly beats training alone, and no client
learns to recognise a class of which it has no samples. A network of some 6,000 weights costs as many bytes as
FedProto's K·d numbers, and can teach it. It is trained with the log-prior of the client's classes added to its
outputs (balanced softmax), so that the weights that are averaged are free of the clients' label skew. Every client
keeps a network of its own beside it, its expert, and answers with both.

Related: FedLC (logit calibration in FedAvg), FedRoD (a generic and a personal head), FedAPEN (shared and private
ensembles), FML, FedKD and FedMRL (a small shared model).
"""

from __future__ import annotations

import copy
import logging
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from protofed.errors import ConfigError, ModelError, unknown_name
from protofed.methods import register
from protofed.methods._weights import WeightedMean, copied, first_model, load_weights, shared_weights
from protofed.methods.contract import Aggregate, Batch, Local, Method, Phase, Tensors, Terms, Update, Upload
from protofed.methods.fixed_etf import FixedETF, FixedETFOptions
from protofed.options import Options, option
from protofed.prototypes.inference import most_likely, pull
from protofed.prototypes.table import Prototypes
from protofed.wire.schema import Field, Payload, Schema, weight_schema

if TYPE_CHECKING:
    from protofed.models import SplitModel

log = logging.getLogger("protofed")

CELLS = 16
"""Places to which maps are pooled: 4×4 of an image, 16 of a series."""


@dataclass(frozen=True)
class BeaconOptions(Options):
    """Hyperparameters."""

    channels: tuple[int, ...] = option(
        (8, 16, 16), "channels of the beacon's convolutions: 6,218 weights for 1×28×28 and K = 10", least=2
    )
    hidden: int = option(
        0, "units of the beacon for vectors (0 = for about as many weights as with convolutions)", least=0
    )
    epochs: int = option(2, "epochs E_h of the beacon per round", least=1)
    lr: float = option(0.1, "learning rate of the beacon's SGD", least=0)
    momentum: float = option(0.9, "its momentum", least=0, below=1)
    rho: float = option(1.0, "ρ of the log-prior log((n_iy + ρ)/(n_i + ρK))", above=0)
    fusion: Literal["average", "sum"] = option(
        "average", "score of a class: mean of expert and beacon, ½(f_y + log softmax h(x)_y), or their sum"
    )
    expert: Literal["plain", "etf"] = option(
        "plain", "what the expert minimises: cross-entropy, or also λ·MSE(f(x), γ·z_y) as fixed_etf"
    )
    lambda_: float = option(1.0, "weight λ of that pull", least=0)
    gamma: float = option(10.0, "length γ of its targets", least=0)
    weighting: Literal["samples", "uniform"] = option(
        "samples", "weight of a client in the mean: n_i, or 1, which discloses no numbers of samples"
    )
    receive_only: tuple[str, ...] = option(
        (), "names of clients that receive the beacon but send none: back goes what came, with weight 0"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.channels:
            raise ValueError("channels must name at least one convolution, e.g. 8,16,16")


@register
class Beacon(Method[BeaconOptions]):
    """Beacon ``h_θ`` travels; expert ``f_i`` stays. ``A_i`` are the classes of client i, ``π_i`` is its log-prior.

    Server state: θ, by the names of its weights. Client state: ``prior`` ``(K,)``, π_i, and ``own`` ``(K,)``, A_i.
    """

    name = "beacon"
    summary = "a tiny shared network, free of class bias, beside every client's own model"
    reference = "a method of this library; see docs/methods.md"
    exchanges = "part of the weights"
    up = "|w_aux|"
    down = "|w_aux|"
    class_sets = "one K-way beacon"
    Options = BeaconOptions

    @classmethod
    def needs_counts(cls, options: BeaconOptions) -> bool:
        """A weighted mean takes ``n_i``."""
        return options.weighting == "samples"

    def check(self) -> None:
        """Refuse samples for which there is no beacon."""
        if self.task.auxiliary is not None:
            _ = self.network

    def check_clients(self, names: Collection[str]) -> None:
        """Refuse a client in ``receive_only`` that does not exist: the one that was meant would send."""
        for name in self.options.receive_only:
            if name not in names:
                raise ConfigError(unknown_name("client in method.receive_only", name, names))

    @cached_property
    def network(self) -> SplitModel:
        """``h_θ`` with the initial θ of all clients."""
        task, o = self.task, self.options
        assert task.auxiliary is not None
        width = tiny_width(task.input_shape, task.num_classes, o.channels, o.hidden)
        shape = {"channels": o.channels, "hidden": o.hidden}
        return task.auxiliary(f"{__name__}:{tiny_network.__name__}", shape, width)

    @cached_property
    def initial(self) -> Tensors:
        """The θ that the server starts from."""
        return copied(shared_weights(self.network, buffers=False))

    def notes(self) -> tuple[str, ...]:
        """Tell the size of the beacon, and warn if it is larger than the model beside it."""
        size, own = (sum(p.numel() for p in model.parameters()) for model in (self.network, first_model(self.task)))
        sentences = [f"The beacon that all clients share has {size:,} parameters."]
        if size > own:
            larger = (
                f"The beacon, with {size:,} parameters, is larger than the first client's model, with {own:,}: "
                "method.channels and method.hidden make it smaller."
            )
            log.warning("%s", larger)
            sentences.append(larger)
        return tuple(sentences)

    # What crosses the network.

    @cached_property
    def broadcast_schema(self) -> Schema:
        """θ."""
        return weight_schema(self.initial, self.task.num_classes)

    @cached_property
    def upload_schema(self) -> Schema:
        """θ_i and the client's weight: n_i, or 1; 0 if it only receives. Left out if all have weight 1."""
        if self.options.weighting == "uniform" and not self.options.receive_only:
            return self.broadcast_schema
        return weight_schema(self.initial, self.task.num_classes, samples=Field((), "count", parameter=False))

    # The client.

    def extend(self, model: SplitModel) -> None:
        """Put the beacon beside the client's own model."""
        model.extras["beacon"] = copy.deepcopy(self.network)

    def client_state(self, counts: Tensor) -> Tensors:
        """Remember π_i and A_i."""
        return {"prior": log_prior(counts, self.options.rho, self.task.dtype), "own": counts > 0}

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Load θ. The expert's fixed targets follow from the seed."""
        targets: Tensors = {}
        if self.options.expert == "etf":
            etf = FixedETF(FixedETFOptions(gamma=self.options.gamma), self.task)
            targets = etf.receive(local, None)
        if message is None:
            return targets
        load_weights(local.model.extras["beacon"], message)
        return {**message, **targets} if self.options.receive_only else targets

    def phases(self, round: int) -> tuple[Phase, ...]:
        """Step 1: E_h epochs of the beacon; step 2: the expert, as the experiment trains models."""
        o = self.options
        sgd = {"name": "SGD", "lr": o.lr, "momentum": o.momentum}
        return (
            Phase((Update(self.beacon_loss, lambda name: name.startswith("extras."), sgd),), epochs=o.epochs),
            Phase((Update(self.loss, lambda name: not name.startswith("extras.")),)),
        )

    def beacon_loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Balanced softmax: cross-entropy of ``h_θ(x) + π_i``.

        Args:
            model: The client's model.
            batch: Samples of one step.
            received: Tensors received by the client.
            state: π_i and A_i.
        """
        logits = model.extras["beacon"](batch.x).logits
        return {"beacon": batch.cross_entropy(logits + state["prior"])}, None

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Cross-entropy of ``f_i(x) + π_i`` over A_i, and the pull towards fixed targets if the expert has it."""
        output = model(batch.x)
        terms = {"cross_entropy": batch.cross_entropy(over(output.logits + state["prior"], state["own"]))}
        if self.options.expert == "etf":
            apart = pull(output.features, batch.y, Prototypes.of(received))
            terms["prototype"] = self.options.lambda_ * batch.mean(apart)
        return terms, output

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Step 3: send θ_i and n_i."""
        receives = local.name in self.options.receive_only
        weights = local.received if receives else shared_weights(local.model.extras["beacon"], buffers=False)
        payload = {name: weights[name] for name in self.initial}
        if "samples" in self.upload_schema.fields:
            payload["samples"] = torch.tensor(0 if receives else self.weight(int(local.counts.sum())))
        return payload

    def weight(self, samples: int) -> int:
        """Return a client's weight in the mean, given its number of samples."""
        return samples if self.options.weighting == "samples" else min(samples, 1)

    @property
    def rules(self) -> tuple[str, ...]:
        """Both on the client's own classes; the beacon with the prior; both on all classes; the beacon alone."""
        return ("head", "beacon", "all_classes", "global_model")

    def predict(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Largest ``s_y + π_i(y)`` in A_i; ``g_y + π_i(y)``; ``P(y)``; ``g_y``, with ``g = log softmax h_θ(x)``.

        A client without training samples has no expert: ``s = g`` there, and every class may be the answer.
        """
        own, prior = state["own"], state["prior"]
        f, g = model(batch.x).logits, model.extras["beacon"](batch.x).logits.log_softmax(-1)
        s = torch.where(own.any(), self.fused(f, g), g)
        return {
            "head": most_likely(over(s + prior, own | ~own.any())),
            "beacon": most_likely(g + prior),
            "all_classes": most_likely(all_classes(s, g, own)),
            "global_model": most_likely(g),
        }

    def fused(self, f: Tensor, g: Tensor) -> Tensor:
        """Return the scores ``s`` ``(B, K)``, which matter within A_i.

        Args:
            f: ``(B, K)`` outputs of the expert.
            g: ``(B, K)`` log-probabilities of the beacon.
        """
        return f + g if self.options.fusion == "sum" else (f + g) / 2

    # The server.

    def server_state(self) -> Tensors:
        """Start from the initial θ."""
        return dict(self.initial)

    def broadcast(self, server: Tensors, round: int, client: str | None = None) -> Payload:
        """Send θ."""
        return dict(server)

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """``θ = Σ n_i·θ_i / Σ n_i`` over the clients of this round; θ stays if all of them only receive."""
        mean = WeightedMean()
        for _, payload in uploads:
            samples = int(payload["samples"]) if "samples" in payload else 1
            mean.add({name: payload[name] for name in server}, self.weight(samples))
        return Aggregate(mean.mean(server), {})


def log_prior(counts: Tensor, rho: float, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return ``π(y) = log((n_y + ρ)/(n + ρK))``, ``(K,)``.

    Args:
        counts: ``(K,)`` int64 samples per class ``n_y``.
        rho: ``ρ``, above 0.
        dtype: Of the result.
    """
    smoothed = counts.double() + rho
    return (smoothed / smoothed.sum()).log().to(dtype)


def over(scores: Tensor, classes: Tensor) -> Tensor:
    """Return ``(B, K)`` scores in which the classes outside a set have no chance.

    Args:
        scores: ``(B, K)``.
        classes: ``(K,)`` bool, the set.
    """
    return scores.masked_fill(~classes, torch.finfo(scores.dtype).min)


def all_classes(s: Tensor, g: Tensor, own: Tensor) -> Tensor:
    """Return ``log P`` ``(B, K)``: the beacon decides whether a class is in A_i; if so, both decide which one.

    ::

        P(y) = P_g(A_i) · softmax of s over A_i    for y in A_i
        P(y) = P_g(y)                              otherwise

    Args:
        s: ``(B, K)`` scores of expert and beacon, which matter within A_i.
        g: ``(B, K)`` log-probabilities of the beacon.
        own: ``(K,)`` bool, A_i.
    """
    inside = over(g, own).logsumexp(-1, keepdim=True)
    return torch.where(own, inside + over(s, own).log_softmax(-1), g)


def tiny_width(input_shape: Sequence[int], num_classes: int, channels: Sequence[int], hidden: int = 0) -> int:
    """Return the length of a beacon's last features: pooled maps, or the units of a perceptron.

    Args:
        input_shape: Shape of one sample.
        num_classes: Number of classes ``K``.
        channels: Channels of each convolution.
        hidden: Units of a perceptron; 0 for as many as give it about the weights of a beacon for images of one
            channel, but at least as many as the last convolution has channels.

    Raises:
        ModelError: If there is no beacon for such samples.
    """
    if len(input_shape) in (2, 3):
        return CELLS * channels[-1]
    if len(input_shape) != 1:
        shape = "×".join(map(str, input_shape)) or "()"
        raise ModelError(
            f"beacon has no network for samples of shape {shape}: it takes vectors (F,), series (C, T) and "
            "images (C, H, W)"
        )
    convolutions = sum(c * (9 * before + 3) for before, c in zip((1, *channels), channels, strict=False))
    per_unit = input_shape[0] + 3 + num_classes
    return hidden or max(channels[-1], round((convolutions + CELLS * channels[-1] * num_classes) / per_unit))


def tiny_network(
    input_shape: Sequence[int], num_classes: int, channels: Sequence[int] = (8, 16, 16), hidden: int = 0
) -> nn.Module:
    """Return a beacon: normalisation within each sample, no running statistics.

    Images pass 3×3 convolutions, each with GroupNorm (groups of four channels) and ReLU, are pooled to 4×4 and go
    through one linear layer. A convolution halves its map while at least 4×4 remain. Series pass convolutions of 9
    steps, which are as large, and are pooled to 16 steps. Vectors pass a perceptron of two layers.

    Args:
        input_shape: ``(C, H, W)``, ``(C, T)`` or ``(F,)``.
        num_classes: Number of classes ``K``.
        channels: Channels of each convolution.
        hidden: Units of the perceptron; see :func:`tiny_width`.

    Raises:
        ModelError: If there is no beacon for such samples.
    """
    width = tiny_width(input_shape, num_classes, channels, hidden)
    layers = OrderedDict[str, nn.Module]()
    if len(input_shape) == 1:
        layers["linear1"] = nn.Linear(input_shape[0], width)
        layers["norm1"] = nn.LayerNorm(width)
        layers["relu1"] = nn.ReLU()
    else:
        image = len(input_shape) == 3
        before, *sides = input_shape
        side, cells = min(sides), 4 if image else CELLS
        for i, c in enumerate(channels, start=1):
            half = -(-side // 2)
            stride = 2 if half >= cells else 1
            side = half if stride == 2 else side
            layers[f"conv{i}"] = (
                nn.Conv2d(before, c, 3, stride, padding=1) if image else nn.Conv1d(before, c, 9, stride, padding=4)
            )
            layers[f"norm{i}"] = nn.GroupNorm(c // 4 if c % 4 == 0 else 1, c)
            layers[f"relu{i}"] = nn.ReLU()
            before = c
        layers["pool"] = nn.AdaptiveAvgPool2d(cells) if image else nn.AdaptiveAvgPool1d(cells)
        layers["flatten"] = nn.Flatten()
    layers["linear"] = nn.Linear(width, num_classes)
    return nn.Sequential(layers)
