"""The contract of methods: one class holds what clients minimise, what is sent, and what the server does.

A method never holds state of its own. Server and client state are flat dictionaries of tensors that the engine
keeps, checkpoints and hands back, so the same method object runs in one process, in many, or over a network.
Everything a client does is written for *one* client; executors decide how clients are run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.compute.seeding import generator
from protofed.errors import ConfigError
from protofed.options import NoOptions
from protofed.prototypes.inference import most_likely
from protofed.wire.schema import Payload, Schema

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from protofed.models import Output, SplitModel

    O = TypeVar("O", default=Any)  # noqa: E741
else:
    from typing import TypeVar

    O = TypeVar("O")  # noqa: E741

Tensors = dict[str, Tensor]
Exchange = Literal["nothing", "prototypes", "logits", "part of the weights", "all weights"]


class Batch(NamedTuple):
    """The samples of one step.

    Attributes:
        x: ``(B, *shape)`` normalised inputs, or ``(B, d)`` features in a phase that trains on features.
        y: ``(B,)`` int64 labels.
        weight: ``(B,)`` 1 for a sample and 0 for padding, or None if nothing is padded.
        importance: ``(B,)`` factor of each sample's cross-entropy (``training.class_weights``), or None for 1.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None
    importance: Tensor | None = None

    def mean(self, per_sample: Tensor) -> Tensor:
        """Return the mean of ``(B,)`` values over the real samples of the batch."""
        if self.weight is None:
            return per_sample.mean()
        return (per_sample * self.weight).sum() / self.weight.sum().clamp(min=1)

    def cross_entropy(self, logits: Tensor) -> Tensor:
        """Return the mean cross-entropy of ``(B, K)`` logits, each sample's times its ``importance``."""
        errors = F.cross_entropy(logits, self.y, reduction="none")
        return self.mean(errors if self.importance is None else errors * self.importance)


Terms: TypeAlias = "tuple[Tensors, Output | None]"
"""Named scalar terms, whose sum is minimised, and the output of the client's model for the batch; None if the loss
does not run the model."""
Loss = Callable[["SplitModel", Batch, Tensors, Tensors], Terms]
"""``loss(model, batch, received, state)``, a pure function; see :meth:`Method.loss`."""


def every_parameter(name: str) -> bool:
    """Select all parameters."""
    return True


@dataclass(frozen=True)
class Update:
    """One optimiser step on a batch.

    Attributes:
        loss: The objective.
        trainable: Selects parameters by their name in the model (``extractor.…``, ``head.…``, ``extras.…``).
        optimizer: Overrides of the experiment's optimiser, e.g. ``{"name": "Adam", "lr": 1e-3}``.
        clip: Largest Euclidean norm of a gradient; longer ones are shortened to it. The client's model and each
            network in its extras are clipped separately.
    """

    loss: Loss
    trainable: Callable[[str], bool] = every_parameter
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    clip: float | None = None

    @property
    def name(self) -> str:
        """The qualified name of the loss."""
        loss: Any = self.loss
        while isinstance(loss, partial):
            loss = loss.func
        return str(getattr(loss, "__qualname__", type(loss).__qualname__))

    def terms(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Return the loss's terms and the model's output.

        Args:
            batch: The samples.
            received: Result of :meth:`Method.receive`.
            state: The method's state on the client.

        Raises:
            ConfigError: If the loss returns anything else.
        """
        result = self.loss(model, batch, received, state)
        if isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], dict):
            return result
        raise ConfigError(f"{self.name} must return its terms and the model's output: return {{...}}, output")


@dataclass(frozen=True)
class Phase:
    """A part of local training: passes over some data, with one or more updates per batch.

    Attributes:
        updates: Carried out one after the other on every batch.
        epochs: Passes over the data; None for the experiment's number of local epochs.
        source: Source of the samples: None for the client's training data, otherwise a function of the client that
            returns ``(x, y)``, such as pseudo-features drawn from received mixtures.
        only: Whether a client takes part; None for all.
        stays: Whether nothing that it trains ever leaves the client or influences what does, so that
            ``privacy.mode=sample`` has nothing to protect in it.
    """

    updates: tuple[Update, ...]
    epochs: int | None = None
    source: Callable[[Local], tuple[Tensor, Tensor]] | None = None
    only: Callable[[Local], bool] | None = None
    stays: bool = False

    def passes(self, epochs: int) -> int:
        """Return the number of passes in an experiment with ``epochs`` local epochs."""
        return epochs if self.epochs is None else self.epochs


class Build(Protocol):
    """Builds a network beside the clients' models, which all parties share."""

    def __call__(self, name: str, options: Mapping[str, Any], d: int | None) -> SplitModel:
        """Return the network, with the same initial weights for every party.

        Args:
            name: An architecture or ``package.module:callable``; empty for the experiment's own architecture (the
                first of a group) with its options.
            d: Length of the network's features; None for the experiment's.

        Raises:
            ConfigError, ModelError: If there is no such architecture, or it cannot take the clients' samples.
        """
        ...


@dataclass(frozen=True)
class Task:
    """The facts about the learning problem that every party knows.

    Attributes:
        num_classes: Number of classes ``K``.
        feature_dim: Length of features ``d``.
        rounds: Planned number of rounds ``R``.
        seed: The experiment's seed.
        class_size: Expected number of training samples per class over all clients (mean ``N_j``).
        clients: Number of clients ``M``; 0 if unknown.
        template: Returns a model of the first client's architecture with its initial weights; None if there are no
            models at all, as in an analysis of finished runs.
        sizes: Returns the number of parameters of each kind of model that clients are known to have; None as
            ``template``.
        auxiliary: Builds an auxiliary network; None if there are no models at all.
        dtype: Of models and server state.
        input_shape: Shape of one sample; empty if there are no models at all.
        noise: Noise multiplier of one upload's :attr:`Method.release`; None without such noise.
    """

    num_classes: int
    feature_dim: int
    rounds: int
    seed: int
    class_size: float
    clients: int = 0
    template: Callable[[], SplitModel] | None = None
    sizes: Callable[[], Sequence[int]] | None = None
    auxiliary: Build | None = None
    dtype: torch.dtype = torch.float32
    input_shape: tuple[int, ...] = ()
    noise: float | None = None


@dataclass
class Local:
    """One client during its visit.

    Attributes:
        name: The client's name.
        round: The present round, counted from 1.
        model: The client's model, on its device.
        counts: ``(K,)`` int64 training samples per class (``n_ij``).
        state: The method's state on this client; the method may change it.
        received: The result of :meth:`Method.receive` for the last broadcast.
        features: Returns ``(n, d)`` eval-mode features of the training data and their ``(n,)`` int64 labels.
        seed: The experiment's seed.
        validation: Returns the batches of the client's validation samples; none if it has no such samples.
        least_samples: Least number of training samples of a class that is reported.
    """

    name: str
    round: int
    model: SplitModel
    counts: Tensor
    state: Tensors
    received: Tensors
    features: Callable[[], tuple[Tensor, Tensor]]
    seed: int
    validation: Callable[[], Iterable[Batch]] = tuple
    least_samples: int = 0

    def generator(self, purpose: str) -> torch.Generator:
        """Return the random generator that belongs to this client, round and ``purpose``."""
        return generator(self.seed, purpose, self.round, self.name)


class Upload(NamedTuple):
    """A client's validated upload."""

    client: str
    payload: Payload


class Aggregate(NamedTuple):
    """The server after a round: its new state, and figures for the round's record."""

    state: Tensors
    diagnostics: dict[str, Any]


class Method(Generic[O]):
    """Base of all methods; the defaults are those of training without communication.

    A method names its options twice: as ``Options`` for those who build it, and as ``Method[MyOptions]`` for type
    checkers, which then know the attributes of ``self.options``. The latter may be left out.

    Class attributes:
        name: The name that users write.
        summary: One line for lists.
        reference: The paper.
        exchanges: The kind of messages, in words.
        up: Numbers that one client sends in a round that communicates, as papers count them: a formula with its
            classes ``K_i``, all classes ``K``, ``d``, the model ``|w|``, its extractor ``|θ|`` and head ``|φ|``.
        down: Numbers that one client is sent, as ``up``.
        class_sets: Whether clients may have different classes, in words.
        Options: Frozen dataclass of hyperparameters, derived from :class:`protofed.options.Options`.
        same_architecture: Whether all clients must have one architecture (if options decide, see
            :meth:`needs_same_architecture`).
        same_feature_dim: Whether all clients must have one ``d``.
        sums_only: Whether the server needs only sums over clients, so that secure aggregation applies.
            May depend on the options.
        personal_broadcast: Whether clients are sent different messages. May depend on the options.
        statistics_from: ``"after"`` collects :meth:`statistics` in a separate eval-mode pass after training,
            ``"before"`` in one before it, ``"during"`` from the training steps of the last local epoch, None not at
            all. May be a property.
        statistics_by_batch: Whether :meth:`statistics` are more than sums over samples, and so have to be computed
            batch by batch. May be a property.
        release: Factors of the :meth:`statistics` in one vector that noise is added to once, if they are the same
            in every round and uploads follow from them alone; empty if not.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    reference: ClassVar[str] = ""
    exchanges: Exchange = "nothing"
    up: ClassVar[str] = "0"
    down: ClassVar[str] = "0"
    class_sets: ClassVar[str] = "yes"
    Options: ClassVar[type[Any]] = NoOptions
    same_architecture: ClassVar[bool] = False
    same_feature_dim: ClassVar[bool] = False
    sums_only: bool = True
    personal_broadcast: bool = False
    release: ClassVar[Mapping[str, float]] = {}

    def __init__(self, options: O, task: Task) -> None:
        self.options = options
        self.task = task
        self.check()

    @classmethod
    def needs_same_architecture(cls, options: O) -> bool:
        """Return whether all clients must have one architecture; called before there is a method."""
        return cls.same_architecture

    @classmethod
    def needs_counts(cls, options: O) -> bool:
        """Return whether clients must disclose their numbers of samples, in uploads or before the first round.

        Called before there is a method. Methods that return False accept clients that withhold these numbers.
        """
        return False

    @classmethod
    def sends_sums(cls, options: O) -> bool:
        """Return whether uploads hold sums over samples, which robust rules divide by the numbers of samples.

        Called before there is a method.
        """
        return False

    @classmethod
    def rounds_needed(cls, options: O, *, validated: bool) -> int | None:
        """Return the number of rounds after which more would change nothing; None if there is none.

        Called before there is a method.

        Args:
            validated: Whether clients hold out validation samples.
        """
        return None

    @classmethod
    def depends_on_rounds(cls, options: O) -> str:
        """Return why the planned number of rounds matters before the last one, so that a run cannot be extended.

        Called before there is a method; "" if it does not matter.
        """
        return ""

    def unclippable(self) -> str:
        """Return why one upload cannot stand for all (``privacy.mode=client``), as a clause; "" if it can.

        It can if the server takes nothing of the uploads but means of weights and of classes' rows, in which all
        clients may weigh the same, and sums of the fields that are sums over samples. What is clipped is a client's
        change of all of them together since the broadcast, which has fields of the same names.
        """
        return "its server needs every single one" if not self.sums_only else "it does not declare how"

    def check(self) -> None:
        """Check that options and task fit each other, before any training.

        Raises:
            ConfigError: If they do not.
        """

    def check_clients(self, names: Collection[str], validated: Collection[str]) -> None:
        """Check that the options suit the clients of the federation, before any training.

        Args:
            validated: Those of them that hold validation samples.

        Raises:
            ConfigError: If they name another client, or need validation samples that nobody holds.
        """

    def notes(self) -> tuple[str, ...]:
        """Return facts about this configuration that its options do not show, as whole sentences for a report."""
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

    def weighted_by(self, name: str) -> str:
        """Return the count in an upload by which the server weights a real field in its mean over clients.

        "" stands for the plain mean, and for the plain sum of a field of sums over samples. By default, rows of
        classes are weighted by a count per row and weights by ``samples``, where uploads have them and the option
        ``weighting`` is not ``uniform``.

        Args:
            name: A field of :attr:`upload_schema`.
        """
        fields = self.upload_schema.fields if self.upload_schema is not None else {}
        field = fields[name]
        if field.sums or getattr(self.options, "weighting", "") == "uniform":
            return ""
        symbol = next((s for s in field.shape[:1] if isinstance(s, str)), None)
        alike = [n for n, f in fields.items() if f.kind == "count" and symbol is not None and f.shape == (symbol,)]
        total = ["samples"] if "samples" in fields else []
        return next(iter(alike or total), "")

    def communicates(self, round: int) -> bool:
        """Return whether clients upload in ``round`` (counted from 1)."""
        return self.upload_schema is not None

    def everyone(self, round: int) -> bool:
        """Return whether all clients take part in ``round``, whatever ``participation.fraction`` is."""
        return False

    # The client.

    @property
    def statistics_from(self) -> Literal["after", "during", "before"] | None:
        """When :meth:`statistics` are collected: see the class."""
        return None

    @property
    def statistics_by_batch(self) -> bool:
        """Whether :meth:`statistics` have to be computed batch by batch."""
        return False

    def extend(self, model: SplitModel) -> None:
        """Add networks of the method's own to ``model.extras``; called once, under the client's init seed.

        Raises:
            ConfigError: If the method cannot work with such a model.
        """

    def client_state(self, counts: Tensor) -> Tensors:
        """Return a new client's state, given its ``(K,)`` class counts.

        With ``privacy.mode=sample`` these are noisy, since what is sent may depend on them; see :meth:`kept_state`.
        """
        return {}

    def kept_state(self, counts: Tensor) -> Tensors:
        """Return what a new client's state has besides, given its true ``(K,)`` class counts in any case.

        Nothing that is sent may depend on it: it is for predictions, and for phases that stay on the client.
        """
        return {}

    def shifted(self, state: Tensors, counts: Tensor) -> Tensors:
        """Return a trained client's state for predictions where its class frequencies have changed.

        Args:
            state: The state, which must not be modified.
            counts: ``(K,)`` int64 numbers of samples per class, in proportion to the new frequencies.
        """
        return state

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Unpack a broadcast; may load weights into ``local.model``.

        Clients receive before they train and before they are scored; steps that only training needs belong in
        :meth:`begin`.

        Args:
            message: The broadcast; None while the server has nothing to send.

        Returns:
            Dense tensors for losses and predictions, which must make both fall back to local training if
            ``message`` is None.
        """
        return {}

    def begin(self, local: Local) -> None:
        """Prepare local training, after :meth:`receive`; may change the model and ``local.state``."""

    def phases(self, round: int) -> tuple[Phase, ...]:
        """Return the parts of local training in ``round``."""
        return (Phase((Update(self.loss),)),)

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Return the terms that a client minimises; the default is cross-entropy.

        Must be pure, and must leave padding out of its means (:meth:`Batch.mean`).

        Args:
            batch: The samples of one step.
            received: Result of :meth:`receive`.
            state: The method's state on the client.

        Returns:
            Named scalar terms, whose sum is minimised, and the model's output.
        """
        output = model(batch.x)
        return {"cross_entropy": batch.cross_entropy(output.logits)}, output

    def statistics(self, output: Output, batch: Batch) -> Tensors:
        """Return sums over the batch, which the engine adds up over the data (see ``statistics_from``).

        Args:
            output: The model's ``(B, d)`` features and ``(B, K)`` logits.
            batch: The samples.
        """
        return {}

    def epoch_end(self, local: Local, statistics: Tensors) -> None:
        """Finish a local epoch; may change ``local.state``.

        Args:
            statistics: Sums over the epoch if they are collected ``"during"`` training, otherwise empty.
        """

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Compose the upload after training; may change ``local.state``.

        Args:
            statistics: Sums over the training data; empty if none were collected.

        Raises:
            NotImplementedError: If the method declares an upload but does not compose it.
        """
        raise NotImplementedError

    @property
    def rules(self) -> tuple[str, ...]:
        """Inference rules that :meth:`predict` reports.

        ``head`` is the client's own model, ``global_model`` the server's. The first of the two in this tuple gives
        the headline numbers, unless there is ``global``, the nearest global prototype.
        """
        return ("head",)

    @property
    def open_rule(self) -> str:
        """The rule by which a client whose samples are all of one class can recognise the others.

        Its network has learned of all classes from other clients, and the client's own frequencies play no part. ""
        if there is none, as where a client's head is its own.
        """
        return ""

    def predict(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Classify a batch by every rule, in eval mode and without gradients.

        By default the class of the largest of the :meth:`scores`.

        Args:
            model: The client's model; all rules should share one forward pass.
            batch: The samples.
            received: Result of :meth:`receive`.
            state: The method's state on the client.

        Returns:
            Per rule ``(B,)`` int64 classes, -1 where the model's output is not finite.
        """
        scores = self.scores(model, batch, received, state)
        return {rule: most_likely(scores[rule]) for rule in self.rules}

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Return per rule the ``(B, K)`` scores of a batch, whose softmax are the probabilities of the classes.

        Args:
            model: The client's model; all rules should share one forward pass.
            batch: The samples; labels do not matter.
            received: Result of :meth:`receive`.
            state: The method's state on the client.
        """
        return {"head": model(batch.x).logits}

    # The server.

    def server_state(self) -> Tensors:
        """Return the server's state before the first round."""
        return {}

    def broadcast(self, server: Tensors, round: int, client: str | None = None) -> Payload | None:
        """Return the message that opens a round; None if there is nothing to send yet.

        Args:
            round: The round, counted from 1.
            client: The receiving client's name if ``personal_broadcast``, otherwise None.
        """
        return None

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """Return the server's state after a round.

        Args:
            server: The state before the round.
            uploads: An iterator over at least one upload, in a fixed order of clients. Consume it once and keep
                only the necessary, so that thousands of clients can be aggregated as they arrive. Without uploads,
                the server keeps its state, and the method is not asked.
            round: The round, counted from 1.
        """
        for _ in uploads:
            pass
        return Aggregate(server, {})
