"""FedKD: every client's "mentor" and a shared "mentee" teach each other; the mentee's updates travel at low rank.

Wu, Wu, Lyu, Huang and Xie, "Communication-efficient federated learning via knowledge distillation", Nature
Communications 13:2032, 2022.

The paper's formulas could not be read; the losses are those of the authors' code, in which nothing is held fixed:
whether the paper intends separate losses is not confirmed. HtFLlib and PFLlib (``compress = parameters``) compress
the parameters where the paper compresses updates, count rounds from 0 and clip each network's gradient to a norm of
10; their search for the rank may end in a matrix of zeros, ours never does. The mentee and the compression of the
prototype papers are not confirmed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from protofed.errors import PayloadError
from protofed.methods import register
from protofed.methods.contract import Aggregate, Phase, Round, Terms, Traits, Update, Upload
from protofed.methods.given import Batch, Local, SplitModel, Tensors
from protofed.methods.parts.auxiliary import AuxiliaryMethod, AuxiliaryOptions
from protofed.methods.parts.lowrank import LowRank
from protofed.methods.parts.prior import cross_entropy
from protofed.methods.parts.training import HTFL_CLIP, divergence, sound
from protofed.methods.parts.weights import WeightedMean, copy_tensors, load_weights, under, weight_of, with_samples
from protofed.methods.traits import Protection
from protofed.options import remote
from protofed.wire.schema import Field, Payload, Schema

GUARD = 1e-8  #: Added to the sum of losses that divides the distillation


@dataclass(frozen=True)
class FedKDOptions(AuxiliaryOptions):
    """Hyperparameters; the thresholds are those of the paper as the prototype papers quote it."""

    energy_start: float = remote(0.95, "share T of the energy that a message keeps, at first", above=0, most=1)
    energy_end: float = remote(0.98, "share T at the end; linear in between", above=0, most=1)
    compress: Literal["updates", "parameters", "none"] = remote(
        "updates",
        "what travels at low rank: the mentee's updates (the paper), its parameters (HtFLlib and PFLlib, with "
        "gradients clipped to a norm of 10), or nothing",
    )


@register
class FedKD(AuxiliaryMethod[FedKDOptions]):
    """Mentor ``t`` and map ``W_h`` stay with the client; mentee ``s`` is shared.

    Updates need a mentee to be added to; with a lossy codec, roundings add up between the server's and the
    clients'. The server counts its versions: a client that uploaded in the last round has the one before, and is
    sent the update that leads to the present one; any other is sent the whole mentee. A client that is scored and
    then trains receives an update twice and adds it once.

    Server state: the mentee that clients have, ``mentee.…``; the ``message.…`` that led to it; its ``version``; and
    for every client the version on which its last upload was based, ``client.NAME``. Client state: the ``mentee.…``
    from which its round started, and its ``version``.
    """

    name = "fedkd"
    summary = "clients' own models and a shared small one teach each other; its updates travel at low rank"
    reference = "Wu et al., Nature Communications 13:2032, 2022, arXiv 2108.13323"
    role = "mentee"
    Options = FedKDOptions

    @classmethod
    def traits(cls, options: FedKDOptions) -> Traits:
        """The energy of compressed messages grows until the last round; updates need the version before."""
        compress = options.compress
        return replace(
            super().traits(options),
            up="≈ r·|w_aux|",
            down="≈ r·|w_aux|",
            aggregation="personal" if compress == "updates" else "single" if compress == "parameters" else "sums",
            rounds="any" if compress == "none" else "planned",
            protection=Protection(),
        )

    def energy(self, round_number: int) -> float | None:
        """Return ``T(t) = T_start + (t/R)(T_end − T_start)``; None without compression.

        Rounds are counted from 1, with ``compress = parameters`` from 0.
        """
        o = self.options
        if o.compress == "none":
            return None
        passed = round_number - (o.compress == "parameters")
        return o.energy_start + min(1.0, passed / self.task.rounds) * (o.energy_end - o.energy_start)

    @cached_property
    def packing(self) -> LowRank:
        """The encoding of the mentee."""
        return LowRank(self.initial)

    @cached_property
    def upload_schema(self) -> Schema:
        """The mentee or its update, and the client's number of samples."""
        return with_samples(self.packing.schema(self.task.num_classes), self.options.weighting)

    @cached_property
    def broadcast_schema(self) -> Schema:
        """The mentee, or (``whole = 0``) the update that leads to this version."""
        number = Field((), "count", parameter=False)
        return self.packing.schema(self.task.num_classes, version=number, whole=number)

    # The client.

    def extend(self, model: SplitModel) -> None:
        """Add the mentee, and the map ``W_h`` from its features to the mentor's."""
        super().extend(model)
        model.extras["map"] = nn.Linear(self.network.feature_dim, model.feature_dim, bias=False)

    def client_state(self, counts: Tensor) -> Tensors:
        """Start without a version."""
        own = super().client_state(counts)
        return {**own, **_add_prefix("mentee", self.initial), "version": torch.tensor(-1)}

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Start from the global mentee."""
        if message is None:
            return {}
        mentee, version, held = local.model.extras["mentee"], message["version"], int(local.state["version"])
        base = under("mentee.", local.state)
        if message["whole"]:
            base = _valid(self.packing.unpack(message))
        elif held == version - 1:
            base = _plus(base, self.packing.unpack(message))
        elif held != version:
            raise PayloadError(f"version: the update leads to {int(version)}, but {local.name} has {held}")
        load_weights(mentee, base)
        local.state.update({**_add_prefix("mentee", base), "version": version})
        return {}

    def round(self, number: int) -> Round:
        """Mentor, map and mentee step on the same batches."""
        return Round(
            (Phase((Update(self.loss, clip=HTFL_CLIP if self.options.compress == "parameters" else None),)),)
        )

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Adaptive mutual distillation: ``L_t + L_s``, with ``c = CE_t + CE_s`` and the features ``h``.

        ::

            L_t = CE_t + [KL(p_s ‖ p_t) + MSE(h_t, W_h h_s)] / c
            L_s = CE_s + [KL(p_t ‖ p_s) + MSE(h_t, W_h h_s)] / c
        """
        t, s = model(batch.x), model.extras["mentee"](batch.x)
        mapped = model.extras["map"](s.features)
        ce_t, ce_s = (cross_entropy(batch, each.logits, state) for each in (t, s))
        c = ce_t + ce_s + GUARD
        kl = divergence(batch, s.logits, t.logits) + divergence(batch, t.logits, s.logits)
        hidden = 2 * batch.mean((t.features - mapped).square().mean(-1))  # once for either network
        return {
            "cross_entropy": ce_t,
            "mentee_cross_entropy": ce_s,
            "distillation": kl / self.task.num_classes / c,  # the mean over B·K, as in all public code
            "hidden": hidden / c,
        }, t

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send the round's change of the mentee, or the mentee, and ``n_i``."""
        weights = self.take_shared(local.model.extras["mentee"])
        if self.options.compress != "parameters":
            weights = {n: w - local.state[f"mentee.{n}"] for n, w in weights.items()}
        return {**self.packing.pack(weights, self.energy(local.round)), "samples": local.counts.sum()}

    # The server.

    def server_state(self) -> Tensors:
        """Start from one initial mentee."""
        message = self.packing.pack(copy_tensors(self.initial), None)
        return {
            **_add_prefix("mentee", self.initial),
            **_add_prefix("message", message),
            "version": torch.tensor(0),
        }

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload:
        """Send the update that leads from the client's version to the present one, or the whole mentee."""
        version, held = server["version"], server.get(f"client.{client}")
        update = self.options.compress == "updates" and held is not None and int(held) == int(version) - 1
        if update or self.options.compress == "parameters":
            message = under("message.", server)
        else:
            message = self.packing.pack(under("mentee.", server), None)
        return {**message, "version": version, "whole": torch.tensor(int(not update))}

    def read(self, message: Payload, server: Tensors) -> Payload:
        """Return the mentee that an upload describes, as an update of the server's or whole; or this itself."""
        weights, old = self.packing.unpack(message), under("mentee.", server)
        if "version" in message:  # of a broadcast, which leads to the server's
            return old
        return weights if self.options.compress == "parameters" else _plus(old, weights)

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """Rebuild each update and average them; factorise the mean again, and add the result to the mentee.

        An upload whose factors give numbers that may not be broadcast is left out.
        """
        mean, left_out = WeightedMean(), 0
        based = {n: t for n, t in server.items() if n.startswith("client.")}
        for client, payload in uploads:
            weights = self.packing.unpack(payload)
            if not sound(weights):
                left_out += 1
                continue
            mean.add(weights, weight_of(payload, self.options.weighting))
            based[f"client.{client}"] = server["version"].clone()
        if not mean.total:
            return Aggregate(server, {})
        old = under("mentee.", server)
        message = self.packing.pack(mean.mean(old), self.energy(round_number))
        new = self.packing.unpack(message)
        mentee = _valid(new) if self.options.compress == "parameters" else _plus(old, new)
        state = {**_add_prefix("mentee", mentee), **_add_prefix("message", message), **based}
        energy = self.energy(round_number)
        return Aggregate(
            {**state, "version": server["version"] + 1},
            {**({} if energy is None else {"energy": energy}), **({"left_out": left_out} if left_out else {})},
        )


def _add_prefix(prefix: str, tensors: Tensors) -> Tensors:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _plus(base: Tensors, update: Tensors) -> Tensors:
    return _valid({name: tensor + update[name] for name, tensor in base.items()})


def _valid(weights: Tensors) -> Tensors:
    """Return weights within what may be sent; BatchNorm divides by the root of its running variances."""
    limit = Field.limit
    return {n: w.clamp(0.0 if n.endswith("running_var") else -limit, limit) for n, w in weights.items()}
