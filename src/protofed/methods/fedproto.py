"""FedProto: clients exchange class means of features instead of weights.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022. Equation numbers
are the paper's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from protofed.methods import register
from protofed.methods.contract import Aggregate, Batch, Local, Method, Task, Tensors, Terms, Upload
from protofed.methods.parts.prior import SoftmaxOptions, cross_entropy, head_scores, own_classes, shifted
from protofed.options import option
from protofed.prototypes.geometry import summary
from protofed.prototypes.inference import Distance, closeness, most_likely, nearest, pull, pull_of_means
from protofed.prototypes.means import RunningMean, class_means, class_sums
from protofed.prototypes.table import Prototypes
from protofed.wire.schema import Field, Payload, Schema, prototype_schema

if TYPE_CHECKING:
    from protofed.models import Output, SplitModel


@dataclass(frozen=True)
class FedProtoOptions(SoftmaxOptions):
    """Hyperparameters; λ of Eq. 7 is 1 for MNIST and FEMNIST and 0.1 for CIFAR-10 in the paper."""

    lambda_: float = option(1.0, "weight λ of the prototype term", least=0)
    gamma: float = option(1.0, "upscaling γ of the global prototypes (ProtoNorm Eq. 15, Table 5)", least=0)
    prototypes: Literal["after", "during", "before"] = option(
        "after",
        "local prototypes from a pass after training (Eq. 3), during the last local epoch (code of FedProto and "
        "TinyProto), or from a pass before training, a round late (code of ProtoNorm and HtFLlib's FedTGP)",
    )
    regulariser: Literal["samples", "prototypes"] = option(
        "samples", "ρ(f(x), C_y), the mean over a batch (all code), or Σ_j ρ(c_j, C_j) over its prototypes (Eq. 8)"
    )
    distance: Distance = option(
        "squared", "ρ: squared Euclidean over d (all code), Euclidean, or L1 (Eq. 8 names L1 and L2)"
    )
    classes: Literal["all", "own"] = option(
        "all", "a client receives the global prototypes of all classes, or of its own (Sec. 5.1)"
    )
    aggregation: Literal["mean", "weighted", "paper"] = option(
        "mean",
        "over the clients that hold a class: plain mean (the authors' code), mean weighted by n_ij, "
        "or Eq. 6 to the letter (the weighted mean divided once more by the number of clients)",
    )


P = TypeVar("P", bound=FedProtoOptions)


@register
class FedProto(Method[P]):
    """Algorithm 1: LocalUpdate and prototype aggregation.

    Server state: ``prototypes`` ``(K, d)`` and ``present`` ``(K,)``: a class that nobody reports keeps its last
    prototype, a class never reported has none; with ``classes = own`` also ``classes.NAME`` ``(K,)``, those that a
    client reported last. Client state: ``prototypes`` and ``present`` of its own.

    A relative with another server step overrides :meth:`update`.
    """

    name = "fedproto"
    summary = "class means averaged over clients; models stay private"
    reference = "Tan et al., AAAI 2022, arXiv 2105.00243"
    exchanges = "prototypes"
    up = "K_i·d"
    down = "K·d"
    same_feature_dim = True
    Options: ClassVar[type[FedProtoOptions]] = FedProtoOptions

    def __init__(self, options: P, task: Task) -> None:
        super().__init__(options, task)
        self.schema = prototype_schema(task.num_classes, "d", {"d": task.feature_dim})
        if options.classes == "own":  # so the server has to know who holds which
            self.personal_broadcast, self.sums_only = True, False

    @classmethod
    def needs_counts(cls, options: P) -> bool:
        """A weighted mean takes ``n_ij``."""
        return options.aggregation != "mean"

    # What crosses the network.

    @property
    def upload_schema(self) -> Schema:
        """``k`` local prototypes and their classes, with their sample counts if the server weights by them."""
        if not self.needs_counts(self.options):
            return self.schema
        counts = Field(("k",), "count", parameter=False)
        return prototype_schema(self.task.num_classes, "d", self.schema.sizes, counts=counts)

    @property
    def broadcast_schema(self) -> Schema:
        """``k`` global prototypes and their classes."""
        return self.schema

    def unclippable(self) -> str:
        """The server takes plain means, unless options say otherwise."""
        if self.needs_counts(self.options):
            return f"method.aggregation={self.options.aggregation} weights them by n_ij: choose mean"
        if self.personal_broadcast:
            return "method.classes=own lets the server know who holds which class: choose all"
        return "" if self.sums_only else super().unclippable()

    # The client: LocalUpdate(i, C).

    def client_state(self, counts: Tensor) -> Tensors:
        """Start without local prototypes, and for balanced softmax with the client's class frequencies."""
        prior = own_classes(counts, self.task.dtype, balanced=True) if self.options.balanced else {}
        return no_prototypes(self.task).tensors() | prior

    def shifted(self, state: Tensors, counts: Tensor) -> Tensors:
        """Predict with the new frequencies of the classes that were learned."""
        return shifted(state, counts)

    @property
    def gamma(self) -> float:
        """Factor on the global prototypes before they are used."""
        return self.options.gamma

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Return the table of upscaled global prototypes ``γ·C``, of all classes or of the client's own."""
        if message is None:
            return no_prototypes(self.task).tensors()
        table = Prototypes.received(message["prototypes"], message["classes"], self.task.num_classes)
        if self.options.classes == "own":
            table = table.only((local.counts > 0).to(table.present.device))
        return table.scaled(self.gamma).tensors()

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """``CE + λ·MSE(f(x), γ·C_y)`` (Eq. 7, ProtoNorm Eq. 15), or another form of the second term (Eq. 8)."""
        o = self.options
        return pulled(model, batch, received, state, o.lambda_, o.distance, by_class=o.regulariser == "prototypes")

    @property
    def statistics_from(self) -> Literal["after", "during", "before"]:
        """Local prototypes are means over the training data."""
        return self.options.prototypes

    def statistics(self, output: Output, batch: Batch) -> Tensors:
        """Sums and counts per class."""
        sums, counts = class_sums(output.features, batch.y, self.task.num_classes, batch.weight)
        return {"sums": sums, "counts": counts}

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send the prototypes ``c_ij`` of the classes present (Eq. 3), and keep them for the rule ``local``."""
        means = class_means(statistics["sums"], statistics["counts"])
        local.state.update(means.tensors())
        rows, classes = means.to_send()
        payload = {"classes": classes, "prototypes": rows}
        if self.needs_counts(self.options):
            payload["counts"] = statistics["counts"][classes].long()
        return payload

    @property
    def rules(self) -> tuple[str, ...]:
        """The head; the nearest own prototype; the nearest global one of all classes, or of the client's own."""
        return self.options.head_rules("local", "global", "global_own")

    def predict(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """The head, and the nearest prototypes; the head decides while there are none."""
        return nearest_rules(model(batch.x), state, Prototypes.of(received), Prototypes.of(state))

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Logits of the head, and −‖f(x) − C_j‖² of prototypes."""
        return nearest_scores(model(batch.x), state, Prototypes.of(received), Prototypes.of(state))

    # The server.

    def server_state(self) -> Tensors:
        """Start without global prototypes."""
        return no_prototypes(self.task).tensors()

    def broadcast(self, server: Tensors, round: int, client: str | None = None) -> Payload | None:
        """Send the global prototypes that exist; nothing in the first round.

        A client that has not reported its classes yet is sent all, of which it keeps its own.
        """
        table = Prototypes.of(server)
        if self.personal_broadcast and f"classes.{client}" in server:
            table = table.only(server[f"classes.{client}"])
        rows, classes = table.to_send()
        return {"classes": classes, "prototypes": rows} if len(classes) else None

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """Update the global prototypes; add the geometry of the result to the diagnostics."""
        seen = SeenUploads(uploads, self.task.num_classes if self.personal_broadcast else 0)
        return self.conclude(self.update(server, seen, round), seen)

    def conclude(self, new: Aggregate, seen: SeenUploads) -> Aggregate:
        """Return an update with what was seen of the clients, and with the geometry of its prototypes.

        Args:
            new: The server after :meth:`update`.
            seen: The clients' uploads, which the update has consumed.
        """
        state = {**new.state, **seen.classes}
        # A server whose own training has diverged keeps its last state, which it can say only if this is no error.
        geometry = summary(*Prototypes.of(state)) if bool(state["prototypes"].isfinite().all()) else {}
        return Aggregate(state, {**new.diagnostics, **geometry, **seen.lengths()})

    def update(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """Eq. 6: ``C_j`` from the ``c_ij`` of the clients ``i ∈ 𝒩_j`` that report class ``j``.

        Args:
            uploads: Validated uploads, to be consumed once.
            round: Number of the round, from 1.
        """
        mean = self.mean_of(uploads)
        prototypes = mean.mean()
        if self.options.aggregation == "paper":
            divided = prototypes.rows / mean.reporters.clamp(min=1).unsqueeze(-1)
            prototypes = prototypes._replace(rows=divided)
        return Aggregate(self.merge(server, prototypes), {})

    def mean_of(self, uploads: Iterable[Upload]) -> RunningMean:
        """Return the mean over the clients ``𝒩_j`` that report class ``j``, weighted by ``counts`` if sent."""
        mean = RunningMean(self.task.num_classes, self.task.feature_dim)
        for upload in uploads:
            mean.add(upload.payload["classes"], upload.payload["prototypes"], upload.payload.get("counts"))
        return mean

    def merge(self, server: Tensors, new: Prototypes) -> Tensors:
        """Return the server's state with new prototypes; the other classes keep theirs."""
        return {**server, **Prototypes.of(server).merged(new).tensors()}


def no_prototypes(task: Task) -> Prototypes:
    """Return a table ``(K, d)`` in which no class has a prototype."""
    return Prototypes.none(task.num_classes, task.feature_dim, task.dtype)


def pulled(
    model: SplitModel,
    batch: Batch,
    received: Tensors,
    state: Tensors,
    weight: float,
    distance: Distance = "squared",
    *,
    by_class: bool = False,
) -> Terms:
    """Return cross-entropy and the pull of features towards prototypes (Eq. 7).

    Args:
        batch: The samples.
        received: The table of prototypes, as :meth:`Prototypes.tensors` names its parts.
        state: The method's state of the client, with π_i for balanced softmax.
        weight: ``λ``.
        distance: ``ρ``.
        by_class: Whether the batch's prototypes are pulled (Eq. 8) instead of its samples.

    Returns:
        The terms ``CE`` and ``λ·mean ρ(f(x), C_y)`` or ``λ·Σ_j ρ(c_j, C_j)``, and the model's output.
    """
    output = model(batch.x)
    prototypes = Prototypes.of(received)
    if by_class:
        apart = pull_of_means(output.features, batch.y, prototypes, distance, batch.weight)
    else:
        apart = batch.mean(pull(output.features, batch.y, prototypes, distance))
    return {"cross_entropy": cross_entropy(batch, output.logits, state), "prototype": weight * apart}, output


def nearest_rules(output: Output, state: Tensors, shared: Prototypes, own: Prototypes) -> Tensors:
    """Classify a batch by the head and by nearest prototypes; the head decides while a rule has no prototype.

    Args:
        output: The model's ``(B, d)`` features and ``(B, K)`` logits of the batch.
        state: The method's state of the client, with π_i for balanced softmax.

    Returns:
        ``(B,)`` int64 classes of the rules ``head``, ``local``, ``global`` and ``global_own``, with π_i also of
        ``all_classes``.
    """
    answers = {rule: most_likely(scores) for rule, scores in head_scores(output.logits, state).items()}
    head = answers["head"]
    tables = _tables(shared, own).items()
    chosen = {n: torch.where(t.present.any(), nearest(output.features, t), head) for n, t in tables}
    return {**answers, **chosen}


def nearest_scores(output: Output, state: Tensors, shared: Prototypes, own: Prototypes) -> Tensors:
    """Return the logits of the head and −‖f(x) − C_j‖², with whose softmax Snell et al. (2017, Eq. 2) classify.

    Args:
        output: The model's ``(B, d)`` features and ``(B, K)`` logits of the batch.
        state: The method's state of the client, with π_i for balanced softmax.

    Returns:
        ``(B, K)`` scores of the rules of :func:`nearest_rules`; those of classes without a prototype are the least
        number of their type.
    """
    answers, tables = head_scores(output.logits, state), _tables(shared, own).items()
    chosen = {n: torch.where(t.present.any(), closeness(output.features, t), answers["head"]) for n, t in tables}
    return {**answers, **chosen}


def _tables(shared: Prototypes, own: Prototypes) -> dict[str, Prototypes]:
    """Return the prototypes of each rule: the client's, all global ones, and those of the client's own classes."""
    own_classes = shared._replace(present=shared.present & own.present)
    return {"local": own, "global": shared, "global_own": own_classes}


class SeenUploads(Iterable[Upload]):
    """A stream of uploads, and what it has shown of the clients so far.

    Args:
        num_classes: ``K`` to note every client's classes, 0 to note none.

    Attributes:
        classes: As ``classes.NAME``, ``(K,)`` bool, the classes that a client reported.
    """

    def __init__(self, uploads: Iterable[Upload], num_classes: int) -> None:
        self.uploads = uploads
        self.num_classes = num_classes
        self.classes: Tensors = {}
        self.total = 0.0
        self.rows = 0

    def __iter__(self) -> Iterator[Upload]:
        for upload in self.uploads:
            classes, prototypes = upload.payload["classes"], upload.payload["prototypes"]
            if self.num_classes:
                held = torch.zeros(self.num_classes, dtype=torch.bool).index_fill(0, classes, True)
                self.classes[f"classes.{upload.client}"] = held
            self.total += float(prototypes.norm(dim=-1).sum())
            self.rows += len(prototypes)
            yield upload

    def lengths(self) -> dict[str, float]:
        """Return the mean length of the prototypes, as a figure for the diagnostics; none if there were none."""
        return {"local_norm_mean": self.total / self.rows} if self.rows else {}
