"""FeSEM: several global models, each averaged over the clients whose weights are nearest to it.

Xie et al., "Multi-Center Federated Learning", 2020; Long et al., World Wide Web 26, 2023. The formulas are from the
paper's abstract, its public code and a re-implementation, as its body could not be read; how many centres
FedProto's and GFPL's tables use is not confirmed. The public code is not the formula: it compares one layer's
weights, starts from centres that are random numbers, and may never regroup.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.errors import ConfigError
from protofed.methods import register
from protofed.methods.contract import Aggregate, Local, Task, Tensors, Traits, Upload
from protofed.methods.fedavg import FedAvg, FedAvgOptions
from protofed.methods.parts.weights import WeightedMean, weight_of, with_samples
from protofed.methods.traits import GLOBAL_MODEL, HEAD, Protection
from protofed.options import remote
from protofed.wire.schema import Field, Payload, Schema


@dataclass(frozen=True)
class FeSEMOptions(FedAvgOptions):
    """Hyperparameters."""

    weighting: Literal["samples", "uniform"] = remote(
        "uniform", "weight of a client in its centre's mean: n_i, or 1"
    )
    clusters: int = remote(3, "centres C", least=1)
    grouping: Literal["weights", "classes"] = remote(
        "weights",
        "nearest weights | two groups: clients with fewer classes than the mean, and the others (a function in "
        "FedProto's repository that nothing calls)",
    )


@register
class FeSEM(FedAvg[FeSEMOptions]):
    """Minimises ``(1/M)·Σ_i min_c ‖w_i − W_c‖²`` by one E- and one M-step per round.

    Server state: ``centre.…`` ``(C, …)`` for each weight, ``known`` ``(C,)``, and ``cluster.NAME`` for each client
    that has uploaded. All centres start equal, and ties would keep every client in the first for ever: so each is
    seeded once, by k-means++, from the first uploads. If these have fewer different weights than there are centres,
    the remaining centres are seeded from later uploads.
    """

    name = "fesem"
    summary = "clients grouped by their weights, one averaged model per group"
    reference = "Xie et al., 2020, arXiv 2005.01026; Long et al., World Wide Web 2023"
    Options = FeSEMOptions

    def __init__(self, options: FeSEMOptions, task: Task) -> None:
        super().__init__(options, task)
        if options.grouping == "classes" and options.clusters != 2:
            raise ConfigError("fesem: method.grouping=classes makes two groups: set method.clusters=2")
        if 0 < task.clients < options.clusters:
            raise ConfigError(
                f"fesem: method.clusters = {options.clusters}, but there are only {task.clients} clients"
            )

    @classmethod
    def traits(cls, options: FeSEMOptions) -> Traits:
        """Assignment compares single models; a client may be alone in its group, or among others of its class."""
        rules = (replace(GLOBAL_MODEL, open=False), HEAD)
        return replace(super().traits(options), rules=rules, aggregation="personal", protection=Protection())

    @cached_property
    def upload_schema(self) -> Schema:
        """The client's weights and its number of samples; its number of classes if this decides the group."""
        classes = Field((), "count", parameter=False, described=False)
        more = {"held": classes} if self.options.grouping == "classes" else {}
        return with_samples(self.broadcast_schema, self.options.weighting, **more)

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``w_i`` and ``n_i``, and ``K_i`` if it decides the group."""
        payload = super().upload(local, statistics)
        held = {"held": (local.counts > 0).sum()} if "held" in self.upload_schema.fields else {}
        return {**payload, **held}

    @cached_property
    def compared(self) -> list[str]:
        """Names of the weights whose distance decides: parameters only, buffers never."""
        return [n for n, _ in self.first_model().named_parameters()]

    def server_state(self) -> Tensors:
        """Start with ``C`` times the same model."""
        C = self.options.clusters
        centres = {f"centre.{n}": w.expand(C, *w.shape).clone() for n, w in self.initial.items()}
        return {**centres, "known": torch.zeros(C, dtype=torch.bool)}

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload:
        """Send the client's own centre, or that of the largest group if the client has never uploaded."""
        centre = server.get(f"cluster.{client}")
        c = int(_sizes(server, self.options.clusters).argmax()) if centre is None else int(centre)
        return {n: server[f"centre.{n}"][c] for n in self.initial}

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """Assign the clients of this round to their nearest centres (E), and average them there (M)."""
        arrived = list(uploads)
        state = {n: t.clone() for n, t in server.items()}
        points = self._points([upload.payload for upload in arrived])
        C = self.options.clusters
        if self.options.grouping == "weights":
            self._seed(state, arrived, points, round_number)
        distances = torch.cdist(points, self._centres(state), compute_mode="donot_use_mm_for_euclid_dist")
        if self.options.grouping == "weights":
            groups = distances.masked_fill(~state["known"], torch.inf).argmin(1)
        else:
            held = torch.stack([upload.payload["held"] for upload in arrived]).double()
            groups = (held >= held.mean()).long()
        for upload, c in zip(arrived, groups, strict=True):
            state[f"cluster.{upload.client}"] = c
        assigned = [int(state[f"cluster.{upload.client}"]) for upload in arrived]
        means = [WeightedMean() for _ in range(C)]
        for upload, c in zip(arrived, assigned, strict=True):
            means[c].add(
                {n: upload.payload[n] for n in self.initial}, weight_of(upload.payload, self.options.weighting)
            )
        for c, mean in enumerate(means):
            for n, w in mean.mean({n: state[f"centre.{n}"][c] for n in self.initial}).items():
                state[f"centre.{n}"][c] = w
        within = distances[torch.arange(len(arrived)), torch.tensor(assigned)]
        sizes = {str(c + 1): int(n) for c, n in enumerate(_sizes(state, C))}
        return Aggregate(state, {"cluster_size": sizes, "distance_to_centre": float(within.square().mean())})

    def _points(self, payloads: Sequence[Payload]) -> Tensor:
        """Return ``(n, P)`` weights to compare, in float64."""
        return torch.stack([torch.cat([p[n].double().flatten() for n in self.compared]) for p in payloads])

    def _centres(self, state: Tensors) -> Tensor:
        """Return ``(C, P)`` centres, as :meth:`_points`."""
        return torch.cat([state[f"centre.{n}"].double().flatten(1) for n in self.compared], 1)

    def _seed(self, state: Tensors, arrived: Sequence[Upload], points: Tensor, round_number: int) -> None:
        """Seed the centres that are not known yet by k-means++ over the uploads, as far as these differ."""
        drawing = generator(self.task.seed, "fesem centres", round_number)
        for c in (~state["known"]).nonzero().flatten().tolist():
            known = self._centres(state)[state["known"]]
            squared = torch.ones(len(points), dtype=torch.float64)
            if len(known):
                squared = torch.cdist(points, known, compute_mode="donot_use_mm_for_euclid_dist").square().amin(1)
            if not bool((squared > 0).any()):
                return
            chosen = arrived[int(torch.multinomial(squared / squared.max(), 1, generator=drawing))].payload
            for n in self.initial:
                state[f"centre.{n}"][c] = chosen[n]
            state["known"][c] = True


def _sizes(server: Tensors, clusters: int) -> Tensor:
    """Return the ``(C,)`` numbers of clients of the centres."""
    assigned = [int(c) for n, c in server.items() if n.startswith("cluster.")]
    return torch.bincount(torch.tensor(assigned, dtype=torch.int64), minlength=clusters)
