"""Methods that use all that the contract offers, to see that every executor keeps its word."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F

from protofed.methods.contract import Aggregate, Local, Method, Phase, Round, Statistics, Traits, Update, Upload
from protofed.options import remote
from protofed.wire.schema import Field, Schema


def weight_of(model) -> torch.Tensor:
    """Return a number that tells one client's weights from another's."""
    return sum(p.detach().double().abs().sum() for p in model.parameters())


@dataclass(frozen=True)
class ProbeOptions:
    """What the probe does."""

    pull: float = remote(0.1, "how much a client is pulled")


class Probe(Method):
    """Every hook, and in each of them every field of ``Local``."""

    name = "probe"
    summary = "for tests"
    Options = ProbeOptions

    @classmethod
    def traits(cls, options) -> Traits:
        return Traits(exchanges="prototypes", alike="features", aggregation="sums")

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

    @property
    def statistics(self):
        return Statistics(self.sums, "during")

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

    def round(self, number: int):
        every = Update(self.loss)
        probe = Update(self.probe_loss, trainable=lambda name: name.startswith("extras."), optimizer={"lr": 0.05})
        head = Update(self.head_loss, trainable=lambda name: name.startswith("head."))
        again = Phase((head,), epochs=2, source=self.rehearse, after=self.settle)
        return Round((Phase((every, probe), after=self.settle), again), communicates=number != 2)

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

    def sums(self, output, batch):
        hot = F.one_hot(batch.y, self.task.num_classes).to(output.features.dtype)
        if batch.weight is not None:
            hot = hot * batch.weight.unsqueeze(-1)
        return {"sums": hot.T @ output.features, "held": hot.sum(0)}

    def settle(self, local: Local, statistics) -> None:
        self.mark(local, 3.0, *(t.double().abs().sum() for t in statistics.values()))

    def upload(self, local: Local, statistics):
        self.mark(local, 4.0)
        means = statistics["sums"] / statistics["held"].clamp(min=1).unsqueeze(-1)
        return {"means": means, "trace": local.state["trace"].reshape(1), "seen": local.counts.sum().reshape(1)}

    def scores(self, model, batch, received, state):
        output = model(batch.x)
        moved = output.logits + torch.tanh(state["trace"]).to(output.logits.dtype) * received["means"].mean()
        return {"head": moved}

    def broadcast(self, server, round_number: int, client=None):
        return server or None

    def aggregate(self, server, uploads: Iterable[Upload], round_number: int):
        found = list(uploads)
        if not found:
            return Aggregate(server, {})
        total = {n: torch.stack([u.payload[n] for u in found]).sum(0) for n in ("means", "trace", "seen")}
        return Aggregate({**total, "means": total["means"] / len(found)}, {})


class FromFeatures(Method):
    """A phase that trains on the client's own features."""

    name = "from-features"
    summary = "for tests"

    def round(self, number: int):
        head = Update(self.head_loss, trainable=lambda n: n.startswith("head."))
        return Round((Phase((Update(self.loss),)), Phase((head,), source=lambda local: local.features())))

    def head_loss(self, model, batch, received, state):
        return {"head": batch.cross_entropy(model.classify(batch.x))}, None


class ReadsItsModel(Method):
    """A function after every epoch that looks at the client's weights."""

    name = "reads-its-model"
    summary = "for tests"

    def client_state(self, counts):
        return {"seen": torch.zeros((), dtype=torch.float64)}

    def round(self, number: int):
        return Round((Phase((Update(self.loss),), after=self.look),))

    def look(self, local: Local, statistics) -> None:
        local.state["seen"] = weight_of(local.model)


class CountsUp(Method):
    """A ``begin`` that counts, in place."""

    name = "counts-up"
    summary = "for tests"

    def client_state(self, counts):
        return {"begun": torch.zeros((), dtype=torch.float64)}

    def begin(self, local: Local) -> None:
        local.state["begun"].add_(1)


STACKED_FACTOR = 1.0  #: What a mistaken batching rule would multiply a loss by


class Late(Probe):
    """Uses one more loss in its third round, which a stack may compute differently."""

    name = "late"

    def round(self, number: int):
        usual = super().round(number)
        late = (Phase((Update(self.late_loss),)),) if number == 3 else ()
        return replace(usual, phases=usual.phases + late)

    def late_loss(self, model, batch, received, state):
        output = model(batch.x)
        factor = STACKED_FACTOR if torch._C._functorch.is_batchedtensor(output.logits) else 1.0
        return {"late": factor * batch.cross_entropy(output.logits)}, output
