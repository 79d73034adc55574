"""A round written by hand: a plain PyTorch loop over the clients without any infrastructure.

There is no server, no message, no store and no seeding. Every client's model stays in memory, its samples are
floating-point tensors normalised in advance, and its batches are chosen before timing starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed import models
from protofed.compute.seeding import generator
from protofed.config.architectures import FederationSummary
from protofed.config.schema import Experiment
from protofed.errors import ConfigError
from protofed.experiments.builder import build_model
from protofed.experiments.hardware import Hardware
from protofed.methods.contract import Tensors
from protofed.methods.fedproto import FedProtoOptions
from protofed.rounds.loop import Federation
from protofed.samples import FederatedData, Samples
from protofed.visits.batches import EVALUATION_BATCH, batch_rows, normalise
from protofed.visits.client import LocalPlan

METHODS = ("local", "fedproto")


def check_method(experiment: Experiment) -> None:
    """Raise ConfigError unless the bare loop supports the experiment's method."""
    if experiment.method not in METHODS:
        raise ConfigError(f"method.name={experiment.method}: the bare loop is for {' and '.join(METHODS)} only")
    for name in ("regulariser", "distance", "classes"):
        only = getattr(FedProtoOptions(), name)
        if getattr(experiment.method_options, name, only) != only:
            raise ConfigError(f"method.{name}: the bare loop is for {only} only")


class Table(NamedTuple):
    """Global prototypes ``(K, d)``, zero for classes without one, and the ``(k,)`` classes that have one."""

    rows: Tensor
    classes: Tensor


class BareClient(NamedTuple):
    """One client's model and normalised data; ``held_out`` are its test and validation sets."""

    name: str
    model: models.SplitModel
    plan: LocalPlan
    train: Samples
    held_out: list[Samples]


class BareLoop:
    """A bare loop with the same training steps, prototypes and predictions as the engine.

    Args:
        reduced: Whether convolutions are computed as in the engine (:func:`protofed.models.reduce_convolutions`).

    Attributes:
        prototypes: Prototypes ``(K, d)`` that each client computed in the last round.
        correct: Number of correctly classified held-out samples of all clients in the last round, by prediction
            rule: the head and, if there are prototypes, the nearest local or global one.
    """

    def __init__(
        self, experiment: Experiment, federated: FederatedData, hardware: Hardware, *, reduced: bool = False
    ) -> None:
        check_method(experiment)
        self.seed = experiment.seed
        self.num_classes = federated.num_classes
        self.prototypes_from = "" if experiment.method == "local" else experiment.method_options.prototypes
        self.weight = 0.0 if experiment.method == "local" else experiment.method_options.lambda_
        self.gamma = 1.0 if experiment.method == "local" else experiment.method_options.gamma
        self.clients = list(_clients(experiment, federated, hardware, reduced))
        self.table: Table | None = None
        self.batches: dict[str, list[Sequence[Tensor]]] = {}
        self.prototypes: dict[str, Tensor] = {}
        self.correct: dict[str, int] = {}

    def load(self, federation: Federation) -> None:
        """Copy the weights and the compute precision of the clients of ``federation``."""
        roster = federation.executor.clients
        for client in self.clients:
            client.model.load_state_dict(roster.snapshot(client.name).model)
            client.model.in_bfloat16 = roster[client.name].kind in roster.in_bfloat16

    def prepare(self, server: Mapping[str, Tensor], round_number: int) -> None:
        """Choose the same batches as the engine does, and copy the server's prototypes."""
        for client in self.clients:
            self.batches[client.name] = [
                self._rows(client, round_number, epoch) for epoch in range(client.plan.epochs)
            ]
        self.table = None
        if self.weight and server["present"].any():
            device = self.clients[0].train.y.device
            classes = server["present"].nonzero().squeeze(-1)
            self.table = Table((self.gamma * server["prototypes"]).to(device), classes.to(device))

    def run(self) -> None:
        """Train all clients, compute their prototypes and evaluate them."""
        self.correct = {}
        for client in self.clients:
            if len(client.train):
                self._train(client)
                if self.prototypes_from == "after":
                    self._pass(client)
            self._score(client)

    def _train(self, client: BareClient) -> None:
        model, (x, y) = client.model, (client.train.x, client.train.y)
        optimizer = getattr(torch.optim, client.plan.optimizer)(model.parameters(), **client.plan.settings)
        model.train()
        for batches in self.batches[client.name]:
            sums = self._no_sums(client)
            for rows in batches:
                labels = y[rows]
                features, logits = model(x[rows])
                loss = F.cross_entropy(logits, labels)
                if self.table is not None:
                    loss = loss + self.weight * F.mse_loss(features, self.table.rows[labels])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                if self.prototypes_from == "during":
                    sums.index_add_(0, labels, features.detach())
        if self.prototypes_from == "during":
            self._keep(client, sums)

    @torch.no_grad()
    def _pass(self, client: BareClient) -> None:
        """Compute a client's prototypes in a pass over its training data."""
        client.model.eval()
        sums = self._no_sums(client)
        for x, y in _chunks(client.train):
            sums.index_add_(0, y, client.model(x).features)
        self._keep(client, sums)

    @torch.no_grad()
    def _score(self, client: BareClient) -> None:
        client.model.eval()
        tables = self._tables(client)
        correct: Tensors = {}
        for x, y in (chunk for samples in client.held_out for chunk in _chunks(samples)):
            features, logits = client.model(x)
            predicted = {"head": logits.argmax(1)}
            for rule, table in tables.items():
                nearest = predicted["head"]  # used if there are no prototypes
                if len(table.classes):
                    nearest = table.classes[torch.cdist(features, table.rows).argmin(1)]
                predicted[rule] = nearest
            for rule, classes in predicted.items():
                correct[rule] = correct.get(rule, 0) + (classes == y).sum()
        for rule, count in correct.items():
            self.correct[rule] = self.correct.get(rule, 0) + int(count)

    def _tables(self, client: BareClient) -> dict[str, Table]:
        """Return the prototypes available to each prediction rule."""
        if not self.prototypes_from:
            return {}
        own = client.train.counts(self.num_classes).nonzero().squeeze(-1)
        local = Table(self.prototypes[client.name][own], own) if len(own) else Table(own, own)
        if self.table is None:
            return {"local": local, "global": Table(own, own[:0]), "global_own": Table(own, own[:0])}
        rows, known = self.table
        mine = known[torch.isin(known, own)]
        return {"local": local, "global": Table(rows[known], known), "global_own": Table(rows[mine], mine)}

    def _rows(self, client: BareClient, round_number: int, epoch: int) -> Sequence[Tensor]:
        random = generator(self.seed, "shuffle", round_number, client.name, 0, epoch)
        order = torch.randperm(len(client.train), generator=random).to(client.train.y.device)
        pairs = client.model.needs_two_samples
        return [
            rows for rows in batch_rows(order, client.plan.batch_size, even=pairs) if len(rows) > 1 or not pairs
        ]

    def _no_sums(self, client: BareClient) -> Tensor:
        return torch.zeros_like(client.model.head.weight[:1]).repeat(self.num_classes, 1)

    def _keep(self, client: BareClient, sums: Tensor) -> None:
        counts = client.train.counts(self.num_classes).clamp(min=1)
        self.prototypes[client.name] = sums / counts.unsqueeze(-1)


def _clients(
    experiment: Experiment, federated: FederatedData, hardware: Hardware, reduced: bool
) -> Iterator[BareClient]:
    layout = hardware.layout

    def ready(samples: Samples) -> Samples:
        x = normalise(samples.x, hardware.dtype)
        return Samples(x.contiguous(memory_format=layout) if x.dim() == 4 else x, samples.y)

    chosen = FederationSummary.of(experiment, federated).architectures
    for client, architecture in zip(federated.clients, chosen, strict=True):
        model = (
            build_model(experiment, federated, architecture, "shared").to(hardware.device).to(memory_format=layout)
        )
        if reduced:
            models.reduce_convolutions(model)
        held_out = [ready(s) for s in (client.test, client.validation) if s is not None]
        plan = experiment.training.plan(client.settings)
        yield BareClient(client.name, model, plan, ready(client.train), held_out)


def _chunks(samples: Samples) -> Iterator[tuple[Tensor, Tensor]]:
    for start in range(0, len(samples), EVALUATION_BATCH):
        rows = slice(start, start + EVALUATION_BATCH)
        yield samples.x[rows], samples.y[rows]
