"""A generator of features that the server trains, and from which clients learn.

The generator is a function of plain tensors, so that a broadcast is all it takes to use one::

    G(ε, y) = W_2 · relu(norm(W_1 · [ε; onehot(y)] + b_1)) + b_2

Training normalises by batch statistics, use by running ones: a generated feature then does not depend on the other
samples of its batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.compute.optimizers import eager
from protofed.compute.seeding import generator
from protofed.methods.contract import Batch, SplitModel, Task, Tensors
from protofed.methods.parts.averaged import FedAvgOptions
from protofed.methods.parts.training import linear_layer, sound
from protofed.methods.parts.weights import under
from protofed.options import remote
from protofed.wire.schema import Field, Payload

PREFIX = "generator."
LATENT = 32
"""Length z of the generator's noise ε, uniform in [0, 1) as in all code; the papers print Gaussian noise."""
BATCH = 32  #: Generated features per server step
EPSILON = 1e-5
MOMENTUM = 0.1  #: Of BatchNorm, as in torch
LabelPrior = Literal["available", "counts", "uniform"]
"""Labels to generate: equally often those of classes held, as often as they are held, or equally often all K."""


@dataclass(frozen=True)
class GeneratorOptions(FedAvgOptions):
    """The generator, and how the server trains it."""

    generator_hidden: int = remote(256, "width h of the generator", least=1)
    generator_steps: int = remote(50, "server steps per round", least=0)
    generator_lr: float = remote(1e-4, "learning rate of the server's Adam, ×0.98 per round", least=0)


class Generated(NamedTuple):
    """Generated features, and the statistics by which the hidden layer was normalised."""

    features: Tensor  # ``(B, d)``
    mean: Tensor  # ``(h,)``
    variance: Tensor  # ``(h,)``


def generate(weights: Tensors, noise: Tensor, labels: Tensor, *, training: bool = False) -> Generated:
    """Return ``G(ε, y)``.

    Args:
        weights: As :attr:`FeatureGenerator.first` names them after the prefix.
        training: Whether to normalise by the statistics of these samples, at least two.
    """
    classes = weights["hidden.weight"].shape[-1] - noise.shape[-1]
    onehot = labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)
    hidden = F.linear(
        torch.cat([noise, onehot.to(noise.dtype)], -1), weights["hidden.weight"], weights["hidden.bias"]
    )
    mean, variance = weights["norm.running_mean"], weights["norm.running_var"]
    if training:
        mean, variance = hidden.mean(0), hidden.var(0, correction=0)
    hidden = (hidden - mean) * (variance + EPSILON).rsqrt() * weights["norm.weight"] + weights["norm.bias"]
    return Generated(F.linear(hidden.relu(), weights["output.weight"], weights["output.bias"]), mean, variance)


def diversity(noise: Tensor, features: Tensor, different: Tensor | None = None) -> Tensor:
    """Return ``exp(−mean_{b,b'} ‖ε_b − ε_b'‖²·|G_b − G_b'|)``, near 0 if different noise gives different features.

    Args:
        noise: ``(B, z)``; squares are averaged over z.
        features: ``(B, d)``; magnitudes are averaged over d.
        different: ``(B, B)`` bool; other pairs count as 0 in the mean. None for all pairs.
    """
    apart = (noise.unsqueeze(0) - noise.unsqueeze(1)).square().mean(-1)
    other = (features.unsqueeze(0) - features.unsqueeze(1)).abs().mean(-1)
    pairs = apart * other
    return (-(pairs if different is None else pairs * different).mean()).exp()


class Heads(NamedTuple):
    """The classifiers of this round's S clients."""

    weight: Tensor  # ``(S, K, d)``
    bias: Tensor  # ``(S, K)``
    share: Tensor  # ``(S,)``, ``n_i / Σ n``
    of_class: Tensor  # ``(S, K)``, ``a_{y,i} = n_iy / Σ_i n_iy``, a client's share in the samples of a class

    def logits(self, features: Tensor) -> Tensor:
        """Return ``(S, B, K)`` answers of all clients to ``(B, d)`` features."""
        return features @ self.weight.mT + self.bias.unsqueeze(1)

    def weigh_errors(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return ``Σ_i mean_b(a_{y_b,i}·CE(g_i(G_b), y_b))`` for ``(B, d)`` features ``G_b`` of classes ``y_b``."""
        answers = self.logits(features)
        S, B, K = answers.shape
        errors = F.cross_entropy(answers.reshape(S * B, K), labels.repeat(S), reduction="none").reshape(S, B)
        return (self.of_class[:, labels] * errors).mean(1).sum()


class Teachers:
    """The heads and sample counts of this round's clients, seen one after the other."""

    def __init__(self, num_classes: int, dtype: torch.dtype) -> None:
        self.num_classes, self.dtype = num_classes, dtype
        self.weights: list[Tensor] = []
        self.biases: list[Tensor] = []
        self.sizes: list[Tensor] = []
        self.counts: list[Tensor] = []

    def add(self, payload: Payload) -> None:
        """Add a client's upload."""
        self.weights.append(payload["head.weight"])
        self.biases.append(payload["head.bias"])
        self.sizes.append(payload["samples"])
        self.counts.append(payload.get("counts", torch.ones(self.num_classes)))

    def count_held(self) -> Tensor:
        """Return ``(S, K)`` samples of each class, or ones if clients do not send them."""
        return torch.stack(self.counts).to(self.dtype)

    def heads(self) -> Heads:
        """Return all classifiers with their shares."""
        n, held = torch.stack(self.sizes).to(self.dtype), self.count_held()
        shares = n / n.sum().clamp(min=1), held / held.sum(0).clamp(min=1)
        return Heads(torch.stack(self.weights), torch.stack(self.biases), *shares)


Objective = Callable[[Heads, Tensor, Tensor, Tensor], Tensor]
"""``objective(heads, noise, labels, features)``: the scalar that the server minimises over the generator."""


@dataclass(eq=False)
class FeatureGenerator:
    """The generator of one method: its first weights, features drawn from it, and its training on the server.

    Messages and the server's state hold its weights as ``generator.…``, and ``prior`` ``(K,)``, the chances of the
    labels that are generated.

    Args:
        label_prior: How ``prior`` follows from the clients' samples.
    """

    task: Task
    hidden: int
    label_prior: LabelPrior

    @cached_property
    def first(self) -> Tensors:
        """The random weights that the server starts from.

        They are ``(z + K)h + h + 2h + hd + d`` parameters and ``2h`` running statistics.
        """
        task, h, dtype = self.task, self.hidden, self.task.dtype
        source = generator(task.seed, "generator")
        first = linear_layer(LATENT + task.num_classes, h, source, dtype)
        second = linear_layer(h, task.feature_dim, source, dtype)
        weights = {
            **{f"hidden.{name}": t for name, t in first.items()},
            "norm.weight": torch.ones(h, dtype=dtype),
            "norm.bias": torch.zeros(h, dtype=dtype),
            "norm.running_mean": torch.zeros(h, dtype=dtype),
            "norm.running_var": torch.ones(h, dtype=dtype),
            **{f"output.{name}": t for name, t in second.items()},
        }
        return {PREFIX + name: tensor for name, tensor in weights.items()}

    def server_state(self) -> Tensors:
        """Return the first weights, with equal chances for all classes."""
        K = self.task.num_classes
        return {**self.first, "prior": torch.full((K,), 1 / K, dtype=self.task.dtype)}

    def not_received(self) -> Tensors:
        """Return the first weights, with no chance for any class, for clients that were sent nothing yet."""
        return {**self.first, "prior": torch.zeros(self.task.num_classes, dtype=self.task.dtype)}

    def broadcast_fields(self) -> dict[str, Field]:
        """Return the fields of a broadcast that hold the generator and the prior."""
        statistics = {PREFIX + "norm.running_mean": None, PREFIX + "norm.running_var": 0.0}
        fields = {
            name: Field(tuple(t.shape), parameter=name not in statistics, minimum=statistics.get(name))
            for name, t in self.first.items()
        }
        return {**fields, "prior": Field((self.task.num_classes,), parameter=False, minimum=0.0, limit=1.0)}

    def upload_fields(self) -> dict[str, Field]:
        """Return the fields of an upload beside weights: ``n_i``, and ``n_ij`` unless the prior is uniform."""
        fields = {"samples": Field((), "count", parameter=False)}
        if self.label_prior != "uniform":
            fields["counts"] = Field((self.task.num_classes,), "count", parameter=False)
        return fields

    def counts_to_send(self, counts: Tensor) -> Payload:
        """Return the part of an upload that holds a client's ``(K,)`` samples ``n_ij``."""
        return {} if self.label_prior == "uniform" else {"counts": counts}

    # The client.

    def noise(self, model: SplitModel, batch: Batch, received: Tensors) -> Tensor:
        """Return noise ``(B, z)`` from the model's source ``noise``."""
        numbers: Tensor = model.extras["noise"]((len(batch.y), LATENT), received["prior"])
        return numbers

    def features(self, received: Tensors, noise: Tensor, labels: Tensor) -> Tensor:
        """Return ``G(ε, y)`` for noise ``(B, z)`` and int64 labels ``(B,)``."""
        return generate(under(PREFIX, received), noise, labels).features

    def pseudo_error(self, model: SplitModel, batch: Batch, received: Tensors) -> Tensor:
        """Return ``CE(g(G(ε, y')), y')``, the mean over B draws; 0 if no class has a chance."""
        heights = received["prior"].cumsum(-1)
        total = heights[-1]
        place = model.extras["noise"]((len(batch.y),), heights) * total
        last = len(heights) - 1
        labels = (place.unsqueeze(-1) >= heights).sum(-1).clamp(max=last)
        features = self.features(received, self.noise(model, batch, received), labels)
        errors = F.cross_entropy(model.classify(features), labels, reduction="none")
        return batch.mean(errors) * (total > 0)

    # The server.

    def train(
        self,
        server: Tensors,
        teachers: Teachers,
        objective: Objective,
        round_number: int,
        *,
        steps: int,
        lr: float,
        weight_decay: float,
    ) -> tuple[Tensors, dict[str, Any]]:
        """Train the generator with Adam, which starts afresh in every round.

        Returns:
            The entries of the server's state that change, and diagnostics; a generator that diverges is not kept.
        """
        prior = self._prior(teachers.count_held().sum(0))
        if not float(prior.sum()) > 0:
            return {}, {}
        source = generator(self.task.seed, "generator training", round_number)
        heads = teachers.heads()
        weights = {n.removeprefix(PREFIX): server[n].clone() for n in self.first}
        leaves = [t.requires_grad_() for n, t in weights.items() if "running" not in n]
        optimizer = eager(torch.optim.Adam)(leaves, lr=lr, weight_decay=weight_decay)
        losses = []
        for _ in range(steps):
            labels = torch.multinomial(prior, BATCH, replacement=True, generator=source)
            noise = torch.rand((len(labels), LATENT), generator=source, dtype=self.task.dtype)
            with torch.enable_grad():
                batch = generate(weights, noise, labels, training=True)
                loss = objective(heads, noise, labels, batch.features)
                gradients = torch.autograd.grad(loss, leaves)
            for leaf, gradient in zip(leaves, gradients, strict=True):
                leaf.grad = gradient
            optimizer.step()
            unbiased = batch.variance * len(labels) / (len(labels) - 1)
            for name, value in (("mean", batch.mean), ("var", unbiased)):
                weights[f"norm.running_{name}"].lerp_(value.detach(), MOMENTUM)
            losses.append(float(loss.detach()))
        trained = {PREFIX + n: t.detach() for n, t in weights.items()}
        if not sound(trained):
            return {"prior": prior}, {"generator_diverged": True}
        diagnostics = {"generator_loss_first": losses[0], "generator_loss_last": losses[-1]} if losses else {}
        return {"prior": prior, **trained}, diagnostics

    def _prior(self, held: Tensor) -> Tensor:
        """Return the chance of each class, given ``(K,)`` samples of all clients."""
        chances = {"uniform": torch.ones_like(held), "counts": held, "available": (held > 0).to(held)}
        chance = chances[self.label_prior]
        return chance / chance.sum().clamp(min=1)
