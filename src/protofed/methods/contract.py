"""What a method is: one class that says what clients minimise, what is sent, and what the server does.

A method never holds state of its own. Server and client state are flat dictionaries of tensors that the engine
keeps, checkpoints and hands back, so the same method object runs in one process, in many, or over a network.
Everything a client does is written for *one* client; executors decide how clients are run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.errors import ConfigError
from protofed.options import NoOptions
from protofed.prototypes.inference import most_likely
from protofed.seeding import generator
from protofed.wire.schema import Payload, Schema

if TYPE_CHECKING:
    from protofed.models import Output, SplitModel

Tensors = dict[str, Tensor]
Exchange = Literal["nothing", "prototypes", "logits", "part of the weights", "all weights"]


class Batch(NamedTuple):
    """Samples of one step.

    Attributes:
        x: ``(B, *shape)`` normalised inputs, or ``(B, d)`` features in a phase that trains on features.
        y: ``(B,)`` int64 labels.
        weight: ``(B,)`` 1 for a sample and 0 for padding, or None where nothing is padded.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None

    def mean(self, per_sample: Tensor) -> Tensor:
        """Return the mean of ``(B,)`` values over the real samples of the batch."""
        if self.weight is None:
            return per_sample.mean()
        return (per_sample * self.weight).sum() / self.weight.sum().clamp(min=1)

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Return the mean cross-entropy of ``(B, K)`` logits."""
        return self.mean(F.cross_entropy(logits, self.y, reduction="none"))


Terms: TypeAlias = "tuple[Tensors, Output | None]"
"""Named scalar terms, whose sum is minimised, and the output of the client's model for the batch; None where there
is none, as for a loss of features alone."""
Loss = Callable[["SplitModel", Batch, Tensors, Tensors], Terms]
"""``loss(model, batch, received, state)``: pure."""


def every_parameter(name: str) -> bool:
    """Select all parameters."""
    return True


@dataclass(frozen=True)
class Update:
    """One optimiser step on a batch.

    Attributes:
        loss: What is minimised.
        trainable: Selects parameters by their name in the model (``extractor.…``, ``head.…``, ``extras.…``).
        optimizer: Overrides of the experiment's optimiser, e.g. ``{"name": "Adam", "lr": 1e-3}``.
        clip: Largest Euclidean norm of a network's gradient, of the client's model and of each network in its
            extras for itself; longer ones are shortened to it.
    """

    loss: Loss
    trainable: Callable[[str], bool] = every_parameter
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    clip: float | None = None

    def terms(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Return the loss's terms and the model's output.

        Raises:
            ConfigError: If the loss returns anything else.
        """
        found = self.loss(model, batch, received, state)
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], dict):
            return found
        name = getattr(self.loss, "__qualname__", repr(self.loss))
        raise ConfigError(f"{name} must return its terms and the model's output: return {{...}}, output")


@dataclass(frozen=True)
class Phase:
    """A part of local training: passes over some data, with one or more updates per batch.

    Attributes:
        updates: Done one after the other on every batch.
        epochs: Passes over the data; None for the experiment's number of local epochs.
        source: Where the samples come from; None for the client's training data, otherwise a function of the
            client that returns ``(x, y)``, such as pseudo-features drawn from received mixtures.
    """

    updates: tuple[Update, ...]
    epochs: int | None = None
    source: Callable[[Local], tuple[Tensor, Tensor]] | None = None

    def passes(self, epochs: int) -> int:
        """Return how many passes it makes where the experiment has ``epochs``."""
        return epochs if self.epochs is None else self.epochs


class Build(Protocol):
    """Makes a network beside the clients' models, which all parties share."""

    def __call__(self, name: str, options: Mapping[str, Any], d: int | None) -> SplitModel:
        """Return it, with the same initial weights for every party.

        Args:
            name: An architecture or ``package.module:callable``; empty: the experiment's own (of a group, the
                first) with its options.
            options: Of the architecture.
            d: Length of its features; None for the experiment's.

        Raises:
            ConfigError, ModelError: If there is no such architecture, or it cannot take the clients' samples.
        """
        ...


@dataclass(frozen=True)
class Task:
    """What every party knows about the learning problem.

    Attributes:
        num_classes: ``K``.
        feature_dim: ``d``.
        rounds: Planned number of rounds ``R``.
        seed: The experiment's seed.
        class_size: Expected number of training samples per class over all clients (mean ``N_j``).
        clients: Number of clients ``M``; 0 where it is not known.
        template: Returns a model of the first client's architecture (of all, where they share one) with its initial
            weights; None only where there are no models at all, as in an analysis of finished runs.
        auxiliary: Makes an auxiliary network; None where there are no models at all (reports of finished runs).
        dtype: Of models and server state.
    """

    num_classes: int
    feature_dim: int
    rounds: int
    seed: int
    class_size: float
    clients: int = 0
    template: Callable[[], SplitModel] | None = None
    auxiliary: Build | None = None
    dtype: torch.dtype = torch.float32


@dataclass
class Local:
    """What a client has at hand during its visit.

    Attributes:
        name: The client's name.
        round: Counted from 1.
        model: Its model, on its device.
        counts: ``(K,)`` int64, its training samples per class (``n_ij``).
        state: The method's state on this client; the method may change it.
        received: What :meth:`Method.receive` made of the last broadcast.
        features: Returns ``(n, d)`` eval-mode features of the training data and their ``(n,)`` labels.
        seed: The experiment's seed.
    """

    name: str
    round: int
    model: SplitModel
    counts: Tensor
    state: Tensors
    received: Tensors
    features: Callable[[], tuple[Tensor, Tensor]]
    seed: int

    def generator(self, purpose: str) -> torch.Generator:
        """Return the generator of this client, round and purpose."""
        return generator(self.seed, purpose, self.round, self.name)


class Upload(NamedTuple):
    """A client's validated upload."""

    client: str
    payload: Payload


class Aggregate(NamedTuple):
    """The server after a round: its new state, and figures worth recording."""

    state: Tensors
    diagnostics: dict[str, Any]


class Method:
    """Base of all methods; the defaults are those of training without communication.

    Class attributes:
        name: What users write.
        summary: One line for lists.
        reference: The paper.
        exchanges: What crosses the network, in words.
        up: What one client sends in a round that communicates, in numbers as papers count them: a formula with
            its classes ``K_i``, all classes ``K``, ``d``, the model ``|w|``, its extractor ``|θ|``, head ``|φ|``.
        down: The same of what it is sent.
        class_sets: Whether clients may have different classes, in words.
        Options: Frozen dataclass of hyperparameters.
        same_architecture: Whether all clients must have one architecture (where options decide, see
            :meth:`needs_same_architecture`).
        same_feature_dim: Whether all clients must have one ``d``.
        sums_only: Whether the server needs only sums over clients, so that secure aggregation applies.
            May depend on the options.
        personal_broadcast: Whether clients are sent different things. May depend on the options.
        statistics_from: ``"after"`` collects :meth:`statistics` in a separate eval-mode pass after training,
            ``"during"`` from the training steps of the last local epoch, None not at all. May be a property.
        statistics_by_batch: Whether :meth:`statistics` are more than sums over samples, and so have to be worked
            out batch by batch. May be a property.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    reference: ClassVar[str] = ""
    exchanges: Exchange = "nothing"
    up: ClassVar[str] = "0"
    down: ClassVar[str] = "0"
    class_sets: ClassVar[str] = "yes"
    Options: ClassVar[type] = NoOptions
    same_architecture: ClassVar[bool] = False
    same_feature_dim: ClassVar[bool] = False
    sums_only: bool = True
    personal_broadcast: bool = False

    def __init__(self, options: Any, task: Task) -> None:
        self.options = options
        self.task = task
        self.check()

    @classmethod
    def needs_same_architecture(cls, options: Any) -> bool:
        """Whether all clients must have one architecture with these options; asked before there is a method."""
        return cls.same_architecture

    @classmethod
    def needs_counts(cls, options: Any) -> bool:
        """Whether clients have to tell how many samples they have, in their uploads or before the first round.

        Asked before there is a method. Others take clients that withhold their numbers of samples.
        """
        return False

    @classmethod
    def sends_sums(cls, options: Any) -> bool:
        """Whether uploads hold sums over samples, which a robust rule compares only if it knows their numbers.

        Asked before there is a method.
        """
        return False

    def check(self) -> None:
        """Raise ConfigError where options and task do not fit each other (before any training)."""

    def notes(self) -> tuple[str, ...]:
        """Return what a report has to say of this configuration beyond its options, in whole sentences."""
        return ()

    # What crosses the network.

    @property
    def upload_schema(self) -> Schema | None:
        """The upload's named tensors; None if clients send nothing."""
        return None

    @property
    def broadcast_schema(self) -> Schema | None:
        """The broadcast's named tensors; None if the server sends nothing."""
        return None

    def communicates(self, round: int) -> bool:
        """Whether clients upload in ``round`` (counted from 1)."""
        return self.upload_schema is not None

    def everyone(self, round: int) -> bool:
        """Whether all clients take part in ``round``, however few are drawn otherwise."""
        return False

    # The client.

    @property
    def statistics_from(self) -> Literal["after", "during"] | None:
        """When :meth:`statistics` are collected."""
        return None

    @property
    def statistics_by_batch(self) -> bool:
        """Whether :meth:`statistics` need single batches."""
        return False

    def extend(self, model: SplitModel) -> None:
        """Add networks of the method's own to ``model.extras``; called once, under the client's init seed.

        Raises:
            ConfigError: If the method cannot work with such a model.
        """

    def client_state(self, counts: Tensor) -> Tensors:
        """Return a new client's state, given its ``(K,)`` class counts."""
        return {}

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Unpack a broadcast into dense tensors for the loss; may load weights into ``local.model``.

        ``message`` is None where the server has nothing to send yet: the result must make losses and
        predictions fall back to local training.

        Clients receive before they train and before they are scored; what only training needs is for :meth:`begin`.
        """
        return {}

    def begin(self, local: Local) -> None:
        """Called where local training begins, after :meth:`receive`; may change the model and ``local.state``."""

    def phases(self, round: int) -> tuple[Phase, ...]:
        """Return the parts of local training in ``round``."""
        return (Phase((Update(self.loss),)),)

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Return the named terms whose sum is minimised, and the model's output; the default is cross-entropy."""
        output = model(batch.x)
        return {"cross_entropy": batch.cross_entropy(output.logits)}, output

    def statistics(self, output: Output, batch: Batch) -> Tensors:
        """Return sums over the batch that the engine adds up over the data (see :attr:`statistics_from`)."""
        return {}

    def epoch_end(self, local: Local, statistics: Tensors) -> None:
        """Called after each local epoch with that epoch's ``during`` statistics; may change ``local.state``."""

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Compose the upload after training; may change ``local.state``."""
        raise NotImplementedError

    @property
    def rules(self) -> tuple[str, ...]:
        """Inference rules that :meth:`predict` reports.

        ``head`` is the client's own model, ``global_model`` one that the server has; of these two the first named
        is what headline numbers are about, unless there is ``global``, the nearest global prototype.
        """
        return ("head",)

    def predict(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Return, per rule, ``(B,)`` int64 predicted classes, -1 where the model's output is not finite.

        Called in eval mode without gradients. All rules should share one forward pass.
        """
        return {"head": most_likely(model(batch.x).logits)}

    # The server.

    def server_state(self) -> Tensors:
        """Return the server's state before the first round."""
        return {}

    def broadcast(self, server: Tensors, round: int, client: str | None = None) -> Payload | None:
        """Return what opens ``round`` for the clients (for ``client`` alone if ``personal_broadcast``)."""
        return None

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """Return the server's state after ``round``.

        ``uploads`` is an iterator in a fixed order of clients, and may be empty: consume it once, and keep only
        what is needed, so that thousands of clients can be aggregated as they arrive.
        """
        for _ in uploads:
            pass
        return Aggregate(server, {})
