"""A malicious server: weights that make a client's upload hold single training samples.

Fowl et al., "Robbing the Fed: Directly Obtaining Private Data in Federated Learning with Modified Models", ICLR
2022. There, a layer is added to the network; here, the first layer of the network itself is crafted, as by Boenisch
et al., "When the Curious Abandon Honesty: Federated Learning Is Not Private", EuroS&P 2023.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from protofed.compute.seeding import generator
from protofed.engine import FederatedData, Federation, Roster, Sequential
from protofed.methods import Tensors
from protofed.models import SplitModel
from protofed.models.layers import KeyedDropout
from protofed.visits.batches import normalise
from protofed_lab.audit.findings import Finding
from protofed_lab.audit.seen import told

SERVER = "A server that crafts the weights it sends"
CLOSE = 0.01
"""Distance of a reading from a training sample, relative to the sample's length, up to which it is verbatim."""
FAR = 100.0  #: The biases that fix the deviation, relative to what the other units add up to
_PASSED = (nn.Flatten, nn.Identity, KeyedDropout)
STEPS = {True: 1e-2, False: 1e-4}
"""Change of the first layer relative to its weights: in one step, and in several, where it must stay as crafted."""


class Door(NamedTuple):
    """The first two layers of a network whose weights are sent down and come back."""

    first: str  #: A linear layer on the inputs, with ReLU
    second: str  #: The linear layer that follows
    norm: str = ""  #: LayerNorm between the first layer and its ReLU; ``""`` if there is none
    network: str = ""  #: The name of the network among the client's extras; ``""`` for its model

    def parameters(self) -> list[str]:
        """Return the names of the weights to craft."""
        return [f"{layer}.{part}" for layer in self[:3] if layer for part in ("weight", "bias")]


def door(federation: Federation, model: SplitModel, shape: tuple[int, ...]) -> Door | None:
    """Return the layers to craft; None if the weights do not travel or the network begins with another layer."""
    up, down = federation.method.upload_schema, federation.method.broadcast_schema
    if up is None or down is None or federation.method.declared.personal:
        return None
    for extra, network in (("", model), *model.extras.items()):
        if not isinstance(network, SplitModel):
            continue
        names = {module: name for name, module in network.named_modules()}
        layers = [m for m, _ in network.trace(shape) if not isinstance(m, _PASSED)]
        norm = layers.pop(1) if len(layers) > 1 and isinstance(layers[1], nn.LayerNorm) else None
        if [type(m) for m in layers[:3]] == [nn.Linear, nn.ReLU, nn.Linear]:
            found = Door(names[layers[0]], names[layers[2]], names[norm] if norm is not None else "", extra)
            if all(n in up.fields and n in down.fields and n in federation.server for n in found.parameters()):
                return found
    return None


def crafted(weights: Tensors, at: Door, known: Tensor, step: float, random: torch.Generator) -> Tensors:
    """Return weights whose k-th unit of the first layer is active beyond the k-th quantile of a direction.

    All units go on with the same weight, so that a sample moves alike all units that it activates. The difference
    of what unit k and unit k + 1 move comes from the samples between their quantiles.

    LayerNorm would take the common direction out of all units. Three units that go nowhere prevent that: one is the
    negative sum of the others, and two of great opposite biases make the deviation the same for every sample, which
    the scale of the normalisation then undoes.

    Args:
        known: ``(n, D)`` public samples.
        step: Quotient of the learning rate, a client's number of samples, and the change that is wanted of its
            weights relative to their length.
    """
    weight, second = weights[f"{at.first}.weight"], weights[f"{at.second}.weight"]
    units = len(weight) - 3 * bool(at.norm)
    direction = torch.randn(weight.shape[1], generator=random, dtype=torch.float64)
    direction = direction / direction.norm()
    height = known.double() @ direction
    levels = height.quantile((torch.arange(units) + 0.5).double() / units)
    passed = (height.unsqueeze(1) - levels).clamp(min=0).sum(1).mean().clamp(min=1e-6)
    scale = (step / passed).sqrt()
    rows, bias = scale * direction.expand(units, -1), -scale * levels
    onward = (1 / (scale * passed)).expand(second.shape).clone()
    if at.second == "head":  # to classes that gain alike, nothing flows back
        onward[1::2] *= -1
    made = {f"{at.second}.weight": onward, f"{at.second}.bias": torch.zeros(len(second))}
    if at.norm:
        far = FAR * units * scale * (height.abs().max() + levels.abs().max())
        rows = torch.cat([rows, -rows.sum(0, keepdim=True), torch.zeros_like(rows[:2])])
        bias = torch.cat([bias, -bias.sum().reshape(1), torch.stack([far, -far])])
        onward[:, units:] = 0
        made[f"{at.norm}.weight"] = torch.zeros(len(weight))
        made[f"{at.norm}.weight"][:units] = far * (2 / len(weight)) ** 0.5
        made[f"{at.norm}.bias"] = torch.zeros(len(weight))
    made |= {f"{at.first}.weight": rows, f"{at.first}.bias": bias}
    return {n: t.to(weight.dtype).contiguous() for n, t in made.items()}


def readings(before: Tensors, after: Tensors, at: Door) -> Tensor:
    """Return ``(r, D)`` inputs that explain how the first layer changed, one per pair of neighbouring units."""
    weight, bias = ((after[n] - before[n]).double() for n in (f"{at.first}.weight", f"{at.first}.bias"))
    weight, bias = (t - torch.cat([t[1:], torch.zeros_like(t[:1])]) for t in (weight, bias))
    moved = bias.abs() > 1e-4 * bias.abs().max().clamp(min=1e-30)
    return weight[moved] / bias[moved].unsqueeze(1)


def read_verbatim(federation: Federation, federated: FederatedData, round_number: int, *, free: bool) -> Finding:
    """Train a round on crafted weights and count readable samples; ``free``: batch size and epochs too."""
    question, key = "Which training samples can be read?", "verbatim" if free else "verbatim_pinned"
    measure = "share read to 1 %"
    observer = SERVER + (", batch size and epochs" if free else "")
    names = federation.participation.able
    assert isinstance(federation.executor, Sequential)
    clients = federation.executor.clients
    at = door(federation, clients.model(names[0]), federated.input_shape)
    if at is None:
        why = "clients load no weights of a network whose first layer is linear: this attack reads no other"
        return Finding(question, observer, measure, None, 0.0, note=why, key=key)
    dtype = federation.method.task.dtype
    data = {c.name: normalise(c.train.x, dtype).flatten(1) for c in federated.clients}
    known = torch.cat([normalise(c.test.x, dtype).flatten(1) for c in federated.clients])
    total = sum(len(data[n]) for n in names)
    members = list(clients.values())
    if free:
        members = [replace(m, plan=replace(m.plan, epochs=1, batch_size=max(1, len(m.train)))) for m in members]
    name = f"extras.{at.network}.{at.first}.weight" if at.network else f"{at.first}.weight"
    updates = [u for p in federation.method.round(round_number).phases for u in p.updates if u.trainable(name)]
    lr = {**members[0].plan.settings, **(updates[0].optimizer if updates else {})}["lr"]
    step = lr / (total / len(names)) / STEPS[free]
    hostile = copy.copy(federation)
    hostile.executor = Sequential(federation.executor.trainer, Roster(members, clients.models, clients.store))
    sent = {**federation.server}
    sent |= crafted(sent, at, known, step, generator(federation.seed, "audit", "imprint"))
    hostile.state = replace(federation.state, tensors=sent)
    uploads = hostile.exchange(names, round_number)
    whole = any(stage.hides == "server" for stage in federation.stages)
    read: set[tuple[str, int]] = set()
    close: set[tuple[str, int]] = set()
    for upload in told(hostile, uploads, round_number)[:1] if whole else uploads:
        found = readings(sent, upload.payload, at)
        for name in names if whole else [upload.client]:
            own = data[name].double()
            nothing = torch.zeros(1, own.shape[1], dtype=own.dtype)  # is not close to any sample
            gaps = torch.cdist(own, torch.cat([found, nothing])).amin(1) / own.norm(dim=1).clamp(min=1e-9)
            read |= {(name, i) for i in (gaps <= CLOSE).nonzero().squeeze(1).tolist()}
            close |= {(name, i) for i in (gaps <= 10 * CLOSE).nonzero().squeeze(1).tolist()}
    note = f"{len(read)} of {total} training samples to 1 %, {len(close)} to 10 %, from one upload of each client"
    return Finding(question, observer, measure, len(read) / total, 0.0, 0.0, note, key)
