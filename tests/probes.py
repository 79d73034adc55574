"""Methods that use all that the contract offers, to see that every executor keeps its word."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from protofed.methods.contract import Aggregate, Local, Method, Phase, Update, Upload
from protofed.wire.schema import Field, Schema


def weight_of(model) -> torch.Tensor:
    """Return a number that tells one client's weights from another's."""
    return sum(p.detach().double().abs().sum() for p in model.parameters())


@dataclass(frozen=True)
class ProbeOptions:
    """What the probe does."""

    pull: float = 0.1


class Probe(Method):
    """Every hook, and in each of them every field of ``Local``."""

    name = "probe"
    summary = "for tests"
    exchanges = "prototypes"
    Options = ProbeOptions
    same_feature_dim = True

    @property
    def schema(self) -> Schema:
        K, d = self.task.num_classes, self.task.feature_dim
        fields = {
            "means": Field(("K", "d")),
            "trace": Field((1,)),
            "seen": Field((1,), "count", described=False),
        }
        return Schema(fields, K, {"K": K, "d": d})

    upload_schema = broadcast_schema = schema

    def communicates(self, round: int) -> bool:
        return round != 2

    @property
    def statistics_from(self):
        return "during"

    def extend(self, model) -> None:
        model.extras["probe"] = torch.nn.Linear(self.task.feature_dim, 1)

    def client_state(self, counts):
        return {
            "begun": torch.zeros((), dtype=torch.float64),
            "trace": torch.zeros((), dtype=torch.float64),
            "counts": counts.double(),
        }

    def mark(self, local: Local, *numbers: torch.Tensor | float) -> None:
        """Mix numbers, and all that is at hand, into the client's trace."""
        features, labels = local.features()
        own = float(local.generator(f"probe {len(numbers)}").initial_seed() % 97)
        known = sum(t.double().abs().sum() for t in local.received.values()) if local.received else 0.0
        at_hand = (
            weight_of(local.model) + features.double().abs().sum() + labels.sum() + known + own + local.round
            + len(local.name) + local.seed + local.counts.sum() + local.state["begun"]
        )  # fmt: skip
        mixed = (
            sum(number for number in numbers) + torch.rand((), dtype=torch.float64) + torch.sin(at_hand.double())
        )
        local.state["trace"] = 0.5 * local.state["trace"] + mixed

    def receive(self, local: Local, message):
        with torch.no_grad():
            local.model.extras["probe"].weight.mul_(0.9)  # a broadcast may change the model
        K, d = self.task.num_classes, self.task.feature_dim
        if message is None:
            return {"means": torch.zeros(K, d, dtype=self.task.dtype)}
        moved = 1e-3 * (weight_of(local.model) + torch.rand((), dtype=torch.float64))
        return {"means": message["means"] + moved.to(message["means"].dtype)}

    def begin(self, local: Local) -> None:
        local.state["begun"] += 1  # in place: what a failed visit did must not last
        self.mark(local, 1.0)
        with torch.no_grad():
            next(local.model.parameters()).add_(1e-3 * torch.rand(()))

    def phases(self, round: int):
        every = Update(self.loss)
        probe = Update(self.probe_loss, lambda name: name.startswith("extras."), {"lr": 0.05})
        head = Update(self.head_loss, lambda name: name.startswith("head."))
        return (Phase((every, probe)), Phase((head,), epochs=2, source=self.rehearse))

    def rehearse(self, local: Local):
        self.mark(local, 2.0)
        return local.features()

    def loss(self, model, batch, received, state):
        output = model(batch.x)
        pull = (output.features - received["means"][batch.y]).square().sum(-1)
        terms = {
            "cross_entropy": batch.cross_entropy(output.logits),
            "pull": self.options.pull * batch.mean(pull) * (1 + 1e-3 * torch.tanh(state["trace"]).to(pull.dtype)),
        }
        return terms, output

    def probe_loss(self, model, batch, received, state):
        guess = model.extras["probe"](model(batch.x).features.detach()).squeeze(-1)
        return {"probe": batch.mean((guess - batch.y.to(guess.dtype)).square())}, None

    def head_loss(self, model, batch, received, state):
        return {"head": batch.cross_entropy(model.classify(batch.x))}, None

    def statistics(self, output, batch):
        hot = F.one_hot(batch.y, self.task.num_classes).to(output.features.dtype)
        if batch.weight is not None:
            hot = hot * batch.weight.unsqueeze(-1)
        return {"sums": hot.T @ output.features, "held": hot.sum(0)}

    def epoch_end(self, local: Local, statistics) -> None:
        self.mark(local, 3.0, *(t.double().abs().sum() for t in statistics.values()))

    def upload(self, local: Local, statistics):
        self.mark(local, 4.0)
        means = statistics["sums"] / statistics["held"].clamp(min=1).unsqueeze(-1)
        return {"means": means, "trace": local.state["trace"].reshape(1), "seen": local.counts.sum().reshape(1)}

    def predict(self, model, batch, received, state):
        output = model(batch.x)
        moved = output.logits + torch.tanh(state["trace"]).to(output.logits.dtype) * received["means"].mean()
        return {"head": moved.argmax(-1)}

    def broadcast(self, server, round: int, client=None):
        return server or None

    def aggregate(self, server, uploads: Iterable[Upload], round: int):
        found = list(uploads)
        if not found:
            return Aggregate(server, {})
        total = {n: torch.stack([u.payload[n] for u in found]).sum(0) for n in ("means", "trace", "seen")}
        return Aggregate({**total, "means": total["means"] / len(found)}, {})


class FromFeatures(Method):
    """A phase that trains on the client's own features."""

    name = "from-features"
    summary = "for tests"

    def phases(self, round: int):
        return (
            Phase((Update(self.loss),)),
            Phase(
                (Update(self.head_loss, lambda n: n.startswith("head.")),), source=lambda local: local.features()
            ),
        )

    def head_loss(self, model, batch, received, state):
        return {"head": batch.cross_entropy(model.classify(batch.x))}, None


class ReadsItsModel(Method):
    """An ``epoch_end`` that looks at the client's weights."""

    name = "reads-its-model"
    summary = "for tests"

    def client_state(self, counts):
        return {"seen": torch.zeros((), dtype=torch.float64)}

    def epoch_end(self, local: Local, statistics) -> None:
        local.state["seen"] = weight_of(local.model)


class CountsUp(Method):
    """A ``begin`` that counts, in place."""

    name = "counts-up"
    summary = "for tests"

    def client_state(self, counts):
        return {"begun": torch.zeros((), dtype=torch.float64)}

    def begin(self, local: Local) -> None:
        local.state["begun"].add_(1)


STACKED_FACTOR = 1.0
"""What a mistaken batching rule would multiply a loss by."""


class Late(Probe):
    """Uses one more loss in its third round, which a stack may compute differently."""

    name = "late"

    def phases(self, round: int):
        return super().phases(round) + ((Phase((Update(self.late_loss),)),) if round == 3 else ())

    def late_loss(self, model, batch, received, state):
        output = model(batch.x)
        factor = STACKED_FACTOR if torch._C._functorch.is_batchedtensor(output.logits) else 1.0
        return {"late": factor * batch.cross_entropy(output.logits)}, output
