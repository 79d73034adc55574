"""What methods have in common whose server trains a generator of features, and whose clients learn from it too.

The generator is a function of plain tensors, so that a broadcast is all it takes to use one::

    G(ε, y) = W_2 · relu(norm(W_1 · [ε; onehot(y)] + b_1)) + b_2

Batch statistics normalise where it is trained, running ones where it is used: a client's features then do not
depend on who else is in its batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.methods._training import linear_layer, sound
from protofed.methods._weights import GlobalModelMethod, WeightedMean, WeightOptions
from protofed.methods.contract import Aggregate, Batch, Exchange, Local, Tensors, Upload
from protofed.optimizers import eager
from protofed.options import option
from protofed.seeding import generator
from protofed.wire.schema import Field, Payload, Schema

if TYPE_CHECKING:
    from protofed.models import SplitModel

PREFIX = "generator."
EPSILON = 1e-5
MOMENTUM = 0.1
"""Of BatchNorm, as torch has them."""


@dataclass(frozen=True)
class GeneratorOptions(WeightOptions):
    """The generator, and how the server trains it."""

    latent_dim: int = option(32, "length z of the generator's noise ε")
    noise: Literal["uniform", "normal"] = option("uniform", "ε in [0, 1), as in all code, or Gaussian as printed")
    generator_batch_size: int = option(32, "generated features per server step")

    def __post_init__(self) -> None:
        if self.latent_dim < 1:
            raise ValueError(f"latent_dim must be at least 1, not {self.latent_dim}")
        if self.generator_batch_size < 2:
            raise ValueError(
                f"generator_batch_size must be at least 2 (BatchNorm), not {self.generator_batch_size}"
            )


def require_positive(options: object, *names: str) -> None:
    """Raise ValueError unless the named options are at least 0, or left to a preset."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not value >= 0:
            raise ValueError(f"{name} must be at least 0, not {value}")


def initial_generator(
    latent: int, classes: int, hidden: int, width: int, source: torch.Generator, dtype: torch.dtype
) -> Tensors:
    """Return a random generator of ``(z + K)h + h + 2h + hd + d`` parameters and ``2h`` running statistics."""
    first = linear_layer(latent + classes, hidden, source, dtype)
    second = linear_layer(hidden, width, source, dtype)
    one, zero = torch.ones(hidden, dtype=dtype), torch.zeros(hidden, dtype=dtype)
    return {
        **{f"hidden.{name}": t for name, t in first.items()},
        "norm.weight": one,
        "norm.bias": zero,
        "norm.running_mean": zero.clone(),
        "norm.running_var": one.clone(),
        **{f"output.{name}": t for name, t in second.items()},
    }


class Generated(NamedTuple):
    """Features ``(B, d)``, and the ``(h,)`` statistics by which the hidden layer was normalised."""

    features: Tensor
    mean: Tensor
    variance: Tensor


def generate(weights: Tensors, noise: Tensor, labels: Tensor, *, training: bool = False) -> Generated:
    """Return ``G(ε, y)``.

    Args:
        weights: As :func:`initial_generator` names them.
        noise: ``(B, z)``.
        labels: ``(B,)`` int64.
        training: Normalise by the statistics of these samples, ``B ≥ 2``.
    """
    classes = weights["hidden.weight"].shape[-1] - noise.shape[-1]
    own = labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)
    hidden = F.linear(torch.cat([noise, own.to(noise.dtype)], -1), weights["hidden.weight"], weights["hidden.bias"])
    mean, variance = weights["norm.running_mean"], weights["norm.running_var"]
    if training:
        mean, variance = hidden.mean(0), hidden.var(0, correction=0)
    hidden = (hidden - mean) * (variance + EPSILON).rsqrt() * weights["norm.weight"] + weights["norm.bias"]
    return Generated(F.linear(hidden.relu(), weights["output.weight"], weights["output.bias"]), mean, variance)


def diversity(noise: Tensor, features: Tensor, different: Tensor | None = None) -> Tensor:
    """Return ``exp(−mean_{b,b'} ‖ε_b − ε_b'‖²·|G_b − G_b'|)``, near 0 where other noise gives other features.

    Args:
        noise: ``(B, z)``; squares are averaged over z.
        features: ``(B, d)``; magnitudes are averaged over d.
        different: ``(B, B)`` bool, pairs that are not set to 0; these still count in the mean.
    """
    apart = (noise.unsqueeze(0) - noise.unsqueeze(1)).square().mean(-1)
    other = (features.unsqueeze(0) - features.unsqueeze(1)).abs().mean(-1)
    pairs = apart * other
    return (-(pairs if different is None else pairs * different).mean()).exp()


class Heads(NamedTuple):
    """The classifiers of this round's S clients.

    Attributes:
        weight: ``(S, K, d)``.
        bias: ``(S, K)``.
        share: ``(S,)``, ``n_i / Σ n``.
        of_class: ``(S, K)``, ``a_{y,i} = n_iy / Σ_i n_iy``, a client's share in the samples of a class.
    """

    weight: Tensor
    bias: Tensor
    share: Tensor
    of_class: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """Return ``(S, B, K)`` answers of all clients to ``(B, d)`` features."""
        return features @ self.weight.mT + self.bias.unsqueeze(1)

    def weighted_errors(self, features: Tensor, labels: Tensor) -> Tensor:
        """Return ``Σ_i mean_b(a_{y_b,i}·CE(g_i(G_b), y_b))``."""
        answers = self.logits(features)
        S, B, K = answers.shape
        errors = F.cross_entropy(answers.reshape(S * B, K), labels.repeat(S), reduction="none").reshape(S, B)
        return (self.of_class[:, labels] * errors).mean(1).sum()


class GeneratorMethod(GlobalModelMethod):
    """Base: models are averaged, and the heads just uploaded teach a generator that clients receive.

    Server state: the weights; the generator's ``generator.…``; and ``prior`` ``(K,)``, how likely each class is
    drawn by those who generate.
    """

    exchanges: Exchange = "all weights"
    same_feature_dim = True
    sums_only = False  # the generator learns from every single head

    # Settings that the two methods name, and default, in their own ways.

    @property
    def hidden(self) -> int:
        """Width h of the generator."""
        return int(self.options.generator_hidden)

    @property
    def prior_kind(self) -> str:
        """``available``, ``counts`` or ``uniform``."""
        return str(self.options.label_prior)

    def generator_loss(
        self, server: Tensors, heads: Heads, noise: Tensor, labels: Tensor, features: Tensor, round: int
    ) -> Tensor:
        """Return what the server minimises over the generator."""
        raise NotImplementedError

    # What crosses the network.

    @cached_property
    def first_generator(self) -> Tensors:
        """The generator that the server starts from."""
        task = self.task
        source = generator(task.seed, "generator")
        weights = initial_generator(
            self.options.latent_dim, task.num_classes, self.hidden, task.feature_dim, source, task.dtype
        )
        return {PREFIX + name: tensor for name, tensor in weights.items()}

    def more_down(self) -> dict[str, Field]:
        """Return further fields of the broadcast."""
        return {}

    def more_up(self) -> dict[str, Field]:
        """Return further fields of the upload."""
        return {}

    @cached_property
    def broadcast_schema(self) -> Schema:
        """The weights, the generator, and how likely each class is drawn."""
        K = self.task.num_classes
        statistics = {PREFIX + "norm.running_mean": None, PREFIX + "norm.running_var": 0.0}
        generated = {
            name: Field(tuple(t.shape), parameter=name not in statistics, minimum=statistics.get(name))
            for name, t in self.first_generator.items()
        }
        prior = Field((K,), parameter=False, minimum=0.0, limit=1.0)
        fields = {**super().broadcast_schema.fields, **generated, "prior": prior, **self.more_down()}
        return Schema(fields, K, {"d": self.task.feature_dim}, {"k": K} if self.more_down() else {})

    @cached_property
    def upload_schema(self) -> Schema:
        """The weights, ``n_i``, and ``n_ij`` unless the prior is uniform."""
        K = self.task.num_classes
        weights = {name: self.broadcast_schema.fields[name] for name in self.initial}
        counts = {} if self.prior_kind == "uniform" else {"counts": Field((K,), "count", parameter=False)}
        samples = Field((), "count", parameter=False)
        fields = {**weights, "samples": samples, **counts, **self.more_up()}
        return Schema(fields, K, {"d": self.task.feature_dim}, {"k": K} if self.more_up() else {})

    # The client.

    def extend(self, model: SplitModel) -> None:
        """Add the source of ε and y'."""
        model.add_noise("noise")

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Keep the weights, the generator and the prior."""
        if message is not None:
            return dict(message)
        nothing = torch.zeros(self.task.num_classes, dtype=self.task.dtype)
        return {**super().receive(local, None), **self.first_generator, "prior": nothing}

    def draw(self, model: SplitModel, batch: Batch, received: Tensors) -> Tensor:
        """Return noise ``(B, z)``."""
        numbers: Tensor = model.extras["noise"]((len(batch.y), self.options.latent_dim), received["prior"])
        return self.shaped(numbers)

    def shaped(self, numbers: Tensor) -> Tensor:
        """Return noise of the kind asked for, given uniform numbers."""
        if self.options.noise == "uniform":
            return numbers
        result: Tensor = torch.special.ndtri(numbers.clamp(2**-25, 1 - 2**-25))
        return result

    def generated(self, received: Tensors, noise: Tensor, labels: Tensor) -> Tensor:
        """Return ``G(ε, y)`` ``(B, d)`` of the generator received."""
        weights = {n.removeprefix(PREFIX): t for n, t in received.items() if n.startswith(PREFIX)}
        return generate(weights, noise, labels).features

    def pseudo_error(self, model: SplitModel, batch: Batch, received: Tensors) -> Tensor:
        """Return ``CE(g(G(ε, y')), y')``, the mean over as many draws as the batch has samples; 0 without prior."""
        heights = received["prior"].cumsum(-1)
        total = heights[-1]
        place = model.extras["noise"]((len(batch.y),), heights) * total
        last = len(heights) - 1
        labels = (place.unsqueeze(-1) >= heights).sum(-1).clamp(max=last)
        features = self.generated(received, self.draw(model, batch, received), labels)
        errors = F.cross_entropy(model.classify(features), labels, reduction="none")
        return batch.mean(errors) * (total > 0)

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``w_i``, ``n_i`` and ``n_ij``."""
        payload = super().upload(local, statistics)
        return payload if self.prior_kind == "uniform" else {**payload, "counts": local.counts}

    # The server.

    def server_state(self) -> Tensors:
        """Start from one initial model and a random generator; all classes are as likely."""
        K = self.task.num_classes
        prior = torch.full((K,), 1 / K, dtype=self.task.dtype)
        return {**self.initial, **self.first_generator, "prior": prior}

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """Train the generator on the heads just uploaded, then average the weights.

        A generator that diverges is not kept.
        """
        mean = WeightedMean()
        heads: list[tuple[Tensor, Tensor]] = []
        sizes: list[Tensor] = []
        counts: list[Tensor] = []
        for upload in uploads:
            payload = upload.payload
            mean.add({name: payload[name] for name in self.initial}, self.weight_of(payload))
            heads.append((payload["head.weight"], payload["head.bias"]))
            sizes.append(payload["samples"])
            counts.append(payload.get("counts", torch.ones(self.task.num_classes)))
        if not heads:
            return Aggregate(server, {})
        state, diagnostics = {**server, **mean.mean({n: server[n] for n in self.initial})}, {}
        held = torch.stack(counts).to(self.task.dtype)
        prior = self._prior(held.sum(0))
        if float(prior.sum()) > 0:
            n = torch.stack(sizes).to(self.task.dtype)
            weight, bias = (torch.stack(part) for part in zip(*heads, strict=True))
            teachers = Heads(weight, bias, n / n.sum().clamp(min=1), held / held.sum(0).clamp(min=1))
            trained, losses = self._train(server, teachers, prior, round)
            state["prior"] = prior
            if sound(trained):
                state |= trained
                diagnostics = (
                    {"generator_loss_first": losses[0], "generator_loss_last": losses[-1]} if losses else {}
                )
            else:
                diagnostics = {"generator_diverged": True}
        return Aggregate(state, diagnostics)

    def _prior(self, held: Tensor) -> Tensor:
        """Return how likely each class is drawn, given ``(K,)`` samples of all clients."""
        kind = self.prior_kind
        chance = torch.ones_like(held) if kind == "uniform" else held if kind == "counts" else (held > 0).to(held)
        return chance / chance.sum().clamp(min=1)

    def _train(self, server: Tensors, heads: Heads, prior: Tensor, round: int) -> tuple[Tensors, list[float]]:
        """Return the generator after this round's steps of Adam, and the loss before each."""
        o, source = self.options, generator(self.task.seed, "generator training", round)
        weights = {n.removeprefix(PREFIX): server[n].clone() for n in self.first_generator}
        leaves = [t.requires_grad_() for n, t in weights.items() if "running" not in n]
        optimizer = eager(torch.optim.Adam)(
            leaves, lr=o.generator_lr * o.generator_decay ** (round - 1), weight_decay=o.generator_weight_decay
        )
        losses = []
        for _ in range(o.generator_steps):
            labels = torch.multinomial(prior, o.generator_batch_size, replacement=True, generator=source)
            shape = (len(labels), o.latent_dim)
            noise = self.shaped(torch.rand(shape, generator=source, dtype=self.task.dtype))
            with torch.enable_grad():
                found = generate(weights, noise, labels, training=True)
                loss = self.generator_loss(server, heads, noise, labels, found.features, round)
                gradients = torch.autograd.grad(loss, leaves)
            for leaf, gradient in zip(leaves, gradients, strict=True):
                leaf.grad = gradient
            optimizer.step()
            unbiased = found.variance * len(labels) / (len(labels) - 1)
            for name, value in (("mean", found.mean), ("var", unbiased)):
                weights[f"norm.running_{name}"].lerp_(value.detach(), MOMENTUM)
            losses.append(float(loss.detach()))
        return {PREFIX + n: t.detach() for n, t in weights.items()}, losses
