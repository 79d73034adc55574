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
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from protofed.errors import ConfigError
from protofed.methods import register
from protofed.methods.contract import Aggregate, Method, Phase, Round, Terms, Traits, Update, Upload
from protofed.methods.fixed_etf import FixedETF, FixedETFOptions
from protofed.methods.given import Batch, Local, SplitModel, Task, Tensors
from protofed.methods.parts.averaged import average
from protofed.methods.parts.prior import cross_entropy, log_prior, over
from protofed.methods.parts.weights import copy_tensors, load_weights, select_weights, with_samples
from protofed.methods.traits import ALL_CLASSES, GLOBAL_MODEL, HEAD, Protection
from protofed.models.tiny import tiny_width
from protofed.options import Options, remote
from protofed.prototypes.fusion import learn_weights
from protofed.prototypes.inference import pull
from protofed.prototypes.table import Prototypes
from protofed.runs.rules import BEACON, EXPERT
from protofed.wire.schema import Payload, Schema, weight_schema

log = logging.getLogger("protofed")


@dataclass(frozen=True)
class BeaconOptions(Options):
    """Hyperparameters."""

    channels: tuple[int, ...] = remote(
        (8, 16, 16), "channels of the beacon's convolutions: 6,218 weights for 1×28×28 and K = 10", least=2
    )
    hidden: int = remote(
        0, "units of the beacon for vectors (0 = for about as many weights as with convolutions)", least=0
    )
    epochs: int = remote(2, "epochs E_h of the beacon per round", least=1)
    lr: float = remote(0.1, "learning rate of the beacon's SGD", least=0)
    momentum: float = remote(0.9, "its momentum", least=0, below=1)
    rho: float = remote(1.0, "ρ of the log-prior log((n_iy + ρ)/(n_i + ρK))", above=0)
    fusion: Literal["average", "sum", "validation"] = remote(
        "average",
        "score of a class, a·f_y + b·log softmax h(x)_y: their mean (a = b = ½), their sum (a = b = 1), or a and b "
        "that suit the client's validation samples",
    )
    expert: Literal["plain", "etf"] = remote(
        "plain", "what the expert minimises: cross-entropy, or also λ·MSE(f(x), γ·z_y) as fixed_etf"
    )
    lambda_: float = remote(1.0, "weight λ of that pull", least=0)
    gamma: float = remote(10.0, "length γ of its targets", least=0)
    weighting: Literal["samples", "uniform"] = remote(
        "samples", "weight of a client in the mean: n_i, or 1, which discloses no numbers of samples"
    )
    exchange: bool = remote(
        True, "false: nothing is sent, and every client keeps a small network of its own (the control of fusion)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.channels:
            raise ValueError("channels must name at least one convolution, e.g. 8,16,16")


@register
class Beacon(Method[BeaconOptions]):
    """Beacon ``h_θ`` travels; expert ``f_i`` stays. ``A_i`` are the classes of client i, ``π_i`` is its log-prior.

    Server state: θ, by the names of its weights. Client state: ``prior`` ``(K,)``, π_i, and ``own`` ``(K,)``, A_i;
    after a shift of its class frequencies also ``now`` ``(K,)``, the classes that it has then.
    """

    name = "beacon"
    summary = "a tiny shared network, free of class bias, beside every client's own model"
    reference = "a method of this library; see docs/methods.md"
    Options = BeaconOptions

    def __init__(self, options: BeaconOptions, task: Task) -> None:
        super().__init__(options, task)
        if task.auxiliary is not None:  # refuses samples for which there is no beacon
            _ = self.network

    @classmethod
    def traits(cls, options: BeaconOptions) -> Traits:
        """Both on the client's own classes; each alone there; both on all classes; the beacon alone on all."""
        both = replace(
            ALL_CLASSES,
            text="expert and beacon together, among all classes, whatever the client trains on",
            open=options.exchange,
        )
        size = "|w_aux|" if options.exchange else "0"
        return Traits(
            exchanges="part of the weights" if options.exchange else "nothing",
            up=size,
            down=size,
            rules=(HEAD, EXPERT, BEACON, both, replace(GLOBAL_MODEL, open=False)),
            counts="always" if options.exchange and options.weighting == "samples" else "never",
            aggregation="sums",
            protection=Protection(dp_obstacle="", local_only=("prior", "own")),
        )

    def check(self, clients: Mapping[str, bool]) -> None:
        """Refuse a fusion that nobody can learn."""
        if self.options.fusion == "validation" and not any(clients.values()):
            raise ConfigError(
                "method.fusion=validation needs validation samples, of which no client has any: set "
                "data.validation_fraction, e.g. 0.2"
            )

    @cached_property
    def network(self) -> SplitModel:
        """``h_θ`` with the initial θ of all clients."""
        task, o = self.task, self.options
        assert task.auxiliary is not None
        shape = {"channels": o.channels, "hidden": o.hidden}
        return task.auxiliary("tiny", shape, tiny_width(task.input_shape, o.channels, o.hidden))

    @cached_property
    def initial(self) -> Tensors:
        """The θ that the server starts from."""
        return copy_tensors(select_weights(self.network, buffers=False))

    def notes(self) -> tuple[str, ...]:
        """Describe the size of the beacon, and warn if a client's model is smaller."""
        assert self.task.sizes is not None
        size, own = sum(p.numel() for p in self.network.parameters()), min(self.task.sizes())
        whose = "that all clients share" if self.options.exchange else "that each client has for itself"
        sentences = [f"The beacon {whose} has {size:,} parameters."]
        if size > own:
            larger = (
                f"The beacon, with {size:,} parameters, is larger than the smallest model of a client, with "
                f"{own:,}: method.channels and method.hidden make it smaller."
            )
            log.warning("%s", larger)
            sentences.append(larger)
        return tuple(sentences)

    # What crosses the network.

    @cached_property
    def broadcast_schema(self) -> Schema | None:
        """θ."""
        if not self.options.exchange:
            return None
        return weight_schema(self.initial, self.task.num_classes)

    @cached_property
    def upload_schema(self) -> Schema | None:
        """θ_i, and n_i unless all clients have weight 1."""
        schema, weighting = self.broadcast_schema, self.options.weighting
        return schema if schema is None or weighting == "uniform" else with_samples(schema, weighting)

    # The client.

    def extend(self, model: SplitModel) -> None:
        """Put the beacon beside the client's own model."""
        model.extras["beacon"] = copy.deepcopy(self.network)

    def client_state(self, counts: Tensor) -> Tensors:
        """Remember π_i for the beacon's loss, on which θ_i depends; and with A_i for the expert and predictions."""
        prior = log_prior(counts, self.options.rho, self.task.dtype)
        return {"beacon_prior": prior, "prior": prior.clone(), "own": counts > 0}

    def shifted(self, state: Tensors, counts: Tensor) -> Tensors:
        """Replace π_i by that of the new frequencies; A_i stays what the expert has learned."""
        here = counts.to(state["own"].device)
        return {**state, "prior": log_prior(here, self.options.rho, self.task.dtype), "now": here > 0}

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Load θ. The expert's fixed targets follow from the seed, the fusion from the validation samples."""
        received: Tensors = {}
        if self.options.expert == "etf":
            etf = FixedETF(FixedETFOptions(gamma=self.options.gamma), self.task)
            received = etf.receive(local, None)
        if message is not None:
            load_weights(local.model.extras["beacon"], message)
        if self.options.fusion == "validation":
            with torch.no_grad():
                answers = ((*self.outputs(local.model, b), b.y) for b in local.validation())
                own, prior = local.state["own"], local.state["prior"]
                received["fusion"] = learn_weights(answers, own, prior)
        return received

    def round(self, number: int) -> Round:
        """Step 1: E_h epochs of the beacon; step 2: the expert, as the experiment trains models."""
        o = self.options
        sgd = {"name": "SGD", "lr": o.lr, "momentum": o.momentum}
        beacon = Update(self.beacon_loss, trainable=lambda name: name.startswith("extras."), optimizer=sgd)
        expert = Update(self.loss, trainable=lambda name: not name.startswith("extras."))
        return Round((Phase((beacon,), epochs=o.epochs), Phase((expert,), local_only=True)))

    def beacon_loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Balanced softmax: the cross-entropy of ``h_θ(x) + π_i``."""
        logits = model.extras["beacon"](batch.x).logits
        return {"beacon": batch.cross_entropy(logits + state["beacon_prior"])}, None

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Cross-entropy of ``f_i(x) + π_i`` over A_i, and the pull towards fixed targets if the expert has it."""
        output = model(batch.x)
        terms = {"cross_entropy": cross_entropy(batch, output.logits, state)}
        if self.options.expert == "etf":
            apart = pull(output.features, batch.y, Prototypes.of(received))
            terms["prototype"] = self.options.lambda_ * batch.mean(apart)
        return terms, output

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Step 3: send θ_i and n_i."""
        weights = select_weights(local.model.extras["beacon"], buffers=False)
        return weights if self.options.weighting == "uniform" else {**weights, "samples": local.counts.sum()}

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """``P(y)`` with and without the client's class frequencies; expert and beacon alone.

        Largest ``s_y + π_i(y)`` and ``f_y + π_i(y)`` in A_i; ``g_y + π_i(y)``; ``P(y)``; ``g_y``, with
        ``g = log softmax h_θ(x)``. A client without training samples has no expert: ``s = f = g`` there, and every
        class may be the answer.
        """
        own, prior = state["own"], state["prior"]
        f, g = self.outputs(model, batch)
        f = torch.where(own.any(), f, g)
        s = torch.where(own.any(), self.fuse(f, g, received), g)
        p = all_classes(s, g, own)
        now = state.get("now", own)
        return {
            "head": over(p + prior, now | ~now.any()),
            "expert": over(f + prior, own | ~own.any()),
            "beacon": g + prior,
            "all_classes": p,
            "global_model": g,
        }

    def outputs(self, model: SplitModel, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the outputs ``f`` of the expert and the log-probabilities ``g`` of the beacon, ``(B, K)`` each."""
        return model(batch.x).logits, model.extras["beacon"](batch.x).logits.log_softmax(-1)

    def fuse(self, f: Tensor, g: Tensor, received: Tensors) -> Tensor:
        """Return scores ``s`` ``(B, K)`` within A_i from expert outputs f and the beacon's log-probabilities g."""
        if self.options.fusion == "validation":
            weights = received["fusion"]
            return weights[0] * f + weights[1] * g
        return f + g if self.options.fusion == "sum" else (f + g) / 2

    # The server.

    def server_state(self) -> Tensors:
        """Start from the initial θ."""
        return dict(self.initial) if self.options.exchange else {}

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload | None:
        """Send θ."""
        return dict(server) if self.options.exchange else None

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """``θ = Σ n_i·θ_i / Σ n_i`` over the clients of this round."""
        return Aggregate(average(server, uploads, self.options.weighting), {})


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
