"""The contract of methods: one class holds what clients minimise, what is sent, and what the server does.

A method never holds state of its own. Server and client state are flat dictionaries of tensors that the engine
keeps, checkpoints and hands back, so the same method object runs in one process, in many, or over a network.
Everything a client does is written for *one* client; executors decide how clients are run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, TypeAlias

from torch import Tensor

from protofed.errors import ConfigError
from protofed.methods.given import Batch, Build, Local, Output, SplitModel, Task, Tensors
from protofed.methods.traits import HEAD, Exchange, Protection, Traits
from protofed.options import NoOptions
from protofed.prototypes.inference import most_likely
from protofed.wire.schema import Payload, Schema

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    O = TypeVar("O", default=Any)  # noqa: E741
else:
    from typing import TypeVar

    O = TypeVar("O")  # noqa: E741

__all__ = ["Aggregate", "Batch", "Build", "Exchange", "Local", "Loss", "Method", "Output", "Phase", "Protection"]
__all__ += ["Round", "SplitModel", "Task", "Tensors", "Terms", "Traits", "Update", "Upload", "every_parameter"]
__all__ += ["predict", "sends"]

Terms: TypeAlias = "tuple[Tensors, Output | None]"
"""Named scalar terms, whose sum is minimised, and the output of the client's model for the batch; None if the loss
does not run the model."""
Loss = Callable[["SplitModel", Batch, Tensors, Tensors], Terms]
"""``loss(model, batch, received, state)``, a pure function; see :meth:`Method.loss`."""


def every_parameter(name: str) -> bool:
    """Select all parameters."""
    return True


@dataclass(frozen=True, kw_only=True)
class Update:
    """One optimiser step on a batch."""

    loss: Loss = field(kw_only=False)
    #: Selects parameters by their name in the model (``extractor.…``, ``head.…``, ``extras.…``)
    trainable: Callable[[str], bool] = every_parameter
    #: Overrides of the experiment's optimiser, e.g. ``{"name": "Adam", "lr": 1e-3}``
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    #: Largest Euclidean norm of the gradient of the client's model, and of each network in its extras
    clip: float | None = None

    @property
    def name(self) -> str:
        """The qualified name of the loss."""
        loss: Any = self.loss.func if isinstance(self.loss, partial) else self.loss
        return str(getattr(loss, "__qualname__", type(loss).__qualname__))

    def terms(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Return the loss's terms and the model's output."""
        result = self.loss(model, batch, received, state)
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], dict)):
            raise ConfigError(f"{self.name} must return its terms and the model's output: return {{...}}, output")
        for name, term in result[0].items():
            if not isinstance(term, Tensor) or term.dim():
                raise ConfigError(f"{self.name}: the term {name} must be a scalar tensor, not {shape_of(term)}")
        return result


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of local training: passes over some data, with one or more updates per batch."""

    updates: tuple[Update, ...] = field(kw_only=False)  #: Carried out one after the other on every batch
    epochs: int | None = None  #: None for the experiment's number of local epochs
    #: Returns ``(x, y)``, e.g. pseudo-features drawn from received mixtures; None for the client's training data
    source: Callable[[Local], tuple[Tensor, Tensor]] | None = None
    only: Callable[[Local], bool] | None = None  #: Returns whether a client takes part; None for all
    local_only: bool = False  #: Nothing that it trains ever leaves the client or influences what does
    #: Called after every epoch with the client, whose state it may change, and the epoch's statistics if they are
    #: collected ``"during"`` training, otherwise none
    after: Callable[[Local, Tensors], None] | None = None

    def passes(self, epochs: int) -> int:
        """Return the number of passes in an experiment with ``epochs`` local epochs."""
        return epochs if self.epochs is None else self.epochs


@dataclass(frozen=True)
class Round:
    """The phases of a round."""

    phases: tuple[Phase, ...]
    communicates: bool = True  #: Clients upload, if the method has an upload at all


class Statistics(NamedTuple):
    """Sums over a client's training samples, which it needs for its upload."""

    #: Returns those of a batch, given the model's ``(B, d)`` features and ``(B, K)`` logits
    of: Callable[[Output, Batch], Tensors]
    #: In an eval-mode pass after training or before it, or from the training steps of the last epoch
    when: Literal["after", "during", "before"] = "after"


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

    ``Options`` is a frozen dataclass of hyperparameters, derived from :class:`protofed.options.Options`;
    ``Method[MyOptions]`` lets type checkers know those of ``self.options``, and may be left out. Options that do
    not suit the task are refused when the method is constructed.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    reference: ClassVar[str] = ""
    Options: ClassVar[type[Any]] = NoOptions

    def __init__(self, options: O, task: Task) -> None:
        self.options = options
        self.task = task
        self.declared = self.traits(options)
        self.protection = self.declared.protection
        self.rules = tuple(rule.name for rule in self.declared.rules)

    @classmethod
    def traits(cls, options: O) -> Traits:
        """Return the method's traits, which follow from its options."""
        return Traits()

    def check(self, clients: Mapping[str, bool]) -> None:
        """Check that the options suit the clients, before any training; those with validation samples are True."""

    def notes(self) -> tuple[str, ...]:
        """Return facts about this configuration that its options do not show, as whole sentences for a report."""
        return ()

    # What crosses the network: named tensors, or None if nothing is sent.

    @property
    def upload_schema(self) -> Schema | None:
        """The upload."""
        return None

    @property
    def broadcast_schema(self) -> Schema | None:
        """The broadcast."""
        return None

    # The client.

    def round(self, number: int) -> Round:
        """Return the phases of a round, counted from 1."""
        return Round((Phase((Update(self.loss),)),))

    @property
    def statistics(self) -> Statistics | None:
        """Sums over the training samples for :meth:`upload`; None if it needs none."""
        return None

    def extend(self, model: SplitModel) -> None:
        """Add networks of the method's own to ``model.extras``; called once, under the client's init seed."""

    def client_state(self, counts: Tensor) -> Tensors:
        """Return a new client's state, given its ``(K,)`` class counts, or noisy ones.

        Those of :attr:`Protection.local_only` are always made of the true counts.
        """
        return {}

    def shifted(self, state: Tensors, counts: Tensor) -> Tensors:
        """Return a client's state for predictions with other class frequencies, ``counts`` ``(K,)`` int64."""
        return state

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Unpack a broadcast; may load weights into ``local.model``.

        Called before training and before scoring; steps that only training needs belong in :meth:`begin`.

        Args:
            message: None while the server has nothing to send.

        Returns:
            Dense tensors for losses and predictions, which must make both fall back to local training if
            ``message`` is None.
        """
        return {}

    def begin(self, local: Local) -> None:
        """Prepare local training, after :meth:`receive`; may change the model and ``local.state``."""

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """Return the terms that a client minimises; the default is cross-entropy.

        Must be pure, and must leave padding out of its means (:meth:`Batch.mean`).
        """
        output = model(batch.x)
        return {"cross_entropy": batch.cross_entropy(output.logits)}, output

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Compose the upload from the sums over training data, if collected; may change ``local.state``."""
        raise NotImplementedError

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Return ``(B, K)`` logits of class probabilities by rule; all rules should share one forward pass."""
        return {HEAD.name: model(batch.x).logits}

    # The server.

    def server_state(self) -> Tensors:
        """Return the server's state before the first round; later ones may have more tensors and other rows."""
        return {}

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload | None:
        """Return the message that opens a round, counted from 1; None if there is nothing to send yet.

        Args:
            client: The receiver if messages are personal, otherwise None.
        """
        return None

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """Return the server's state after a round, counted from 1.

        Args:
            uploads: An iterator over at least one upload, in a fixed order of clients. Consume it once and keep
                only the necessary, so that thousands of clients can be aggregated as they arrive. Without uploads,
                the server keeps its state, and the method is not asked.
        """
        for _ in uploads:
            pass
        return Aggregate(server, {})

    def read(self, message: Payload, server: Tensors) -> Payload:
        """Return the content of a message of either direction, e.g. whole rows of which some entries were sent."""
        return message


def sends(method: Method, round_number: int) -> bool:
    """Return whether clients upload in a round."""
    return method.upload_schema is not None and method.round(round_number).communicates


def predict(method: Method, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
    """Return per rule the ``(B,)`` int64 classes with the largest :meth:`Method.scores`, -1 where not finite."""
    scores = method.scores(model, batch, received, state)
    expected = len(batch.y), method.task.num_classes
    for rule in method.rules:
        if rule not in scores:
            raise ConfigError(f"{method.name} declares rule {rule!r}, but scores() does not return it")
        if getattr(scores[rule], "shape", None) != expected:
            raise ConfigError(
                f"{type(method).__qualname__}.scores: the rule {rule} must be of shape (B, K) = {expected}, not "
                f"{shape_of(scores[rule])}"
            )
    return {rule: most_likely(scores[rule]) for rule in method.rules}


def shape_of(value: object) -> str:
    """Describe what a hook returned: the shape of a tensor, or the type of anything else."""
    return f"one of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
