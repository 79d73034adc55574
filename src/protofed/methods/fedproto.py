"""FedProto: clients exchange class means of features instead of weights.

Tan et al., "FedProto: Federated Prototype Learning across Heterogeneous Clients", AAAI 2022. Equation numbers
are the paper's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeVar

from torch import Tensor

from protofed.methods import register
from protofed.methods.contract import Aggregate, Method, Statistics, Terms, Traits, Upload
from protofed.methods.given import Batch, Local, SplitModel, Tensors
from protofed.methods.parts.nearest import SeenUploads, class_statistics, mean_of, nearest_scores, no_rows, pulled
from protofed.methods.parts.prior import PrivateHead, SoftmaxOptions
from protofed.methods.traits import GLOBAL, GLOBAL_OWN, LOCAL, Protection
from protofed.options import remote
from protofed.prototypes.inference import Distance
from protofed.prototypes.means import class_means
from protofed.prototypes.table import Prototypes
from protofed.wire.schema import Payload, Schema, prototype_schema


@dataclass(frozen=True)
class FedProtoOptions(SoftmaxOptions):
    """Hyperparameters; λ of Eq. 7 is 1 for MNIST and FEMNIST and 0.1 for CIFAR-10 in the paper."""

    lambda_: float = remote(1.0, "weight λ of the prototype term", least=0)
    gamma: float = remote(1.0, "upscaling γ of the global prototypes (ProtoNorm Eq. 15, Table 5)", least=0)
    prototypes: Literal["after", "during", "before"] = remote(
        "after",
        "local prototypes from a pass after training (Eq. 3), during the last local epoch (code of FedProto and "
        "TinyProto), or from a pass before training, a round late (code of ProtoNorm and HtFLlib's FedTGP)",
    )
    regulariser: Literal["samples", "prototypes"] = remote(
        "samples", "ρ(f(x), C_y), the mean over a batch (all code), or Σ_j ρ(c_j, C_j) over its prototypes (Eq. 8)"
    )
    distance: Distance = remote(
        "squared", "ρ: squared Euclidean over d (all code), Euclidean or L1 (Eq. 8 names L1 and L2), or 1 − cos"
    )
    classes: Literal["all", "own"] = remote(
        "all", "a client receives the global prototypes of all classes, or of its own (Sec. 5.1)"
    )
    aggregation: Literal["mean", "weighted", "paper"] = remote(
        "mean",
        "over the clients that hold a class: plain mean (the authors' code), mean weighted by n_ij, "
        "or Eq. 6 to the letter (the weighted mean divided once more by the number of clients)",
    )


P = TypeVar("P", bound=FedProtoOptions)


@register
class FedProto(PrivateHead[P], Method[P]):
    """Algorithm 1: LocalUpdate and prototype aggregation; a relative with another server overrides :meth:`update`.

    Server state: ``prototypes`` ``(K, d)`` and ``present`` ``(K,)``: a class that nobody reports keeps its last
    prototype, a class never reported has none; with ``classes = own`` also ``classes.NAME`` ``(K,)``, those that a
    client reported last. Client state: ``prototypes`` and ``present`` of its own.
    """

    name = "fedproto"
    summary = "class means averaged over clients; models stay private"
    reference = "Tan et al., AAAI 2022, arXiv 2105.00243"
    Options: ClassVar[type[FedProtoOptions]] = FedProtoOptions

    @classmethod
    def traits(cls, options: P) -> Traits:
        """A weighted mean takes ``n_ij``, and ``classes = own`` tells the server who holds which."""
        counted, own = options.aggregation != "mean", options.classes == "own"
        known = "method.classes=own lets the server know who holds which class: choose all" if own else ""
        weighted = f"method.aggregation={options.aggregation} weights them by n_ij: choose mean"
        return Traits(
            exchanges="prototypes",
            up="K_i·d",
            down="K_i·d" if own else "K·d",
            rules=options.head_rules(LOCAL, GLOBAL, GLOBAL_OWN),
            alike="features",
            counts="always" if counted else "never",
            aggregation="personal" if own else "sums",
            protection=Protection(dp_obstacle=weighted if counted else known),
        )

    @property
    def upload_schema(self) -> Schema:
        """``k`` local prototypes and their classes, with their sample counts if the server weights by them."""
        task, counted = self.task, self.options.aggregation != "mean"
        return prototype_schema(task.num_classes, "d", {"d": task.feature_dim}, counted=counted)

    @property
    def broadcast_schema(self) -> Schema:
        """``k`` global prototypes and their classes."""
        return prototype_schema(self.task.num_classes, "d", {"d": self.task.feature_dim})

    # The client: LocalUpdate(i, C).

    def client_state(self, counts: Tensor) -> Tensors:
        """Start without local prototypes, and for balanced softmax with the client's class frequencies."""
        return no_rows(self.task).tensors() | super().client_state(counts)

    @property
    def gamma(self) -> float:
        """Factor on the global prototypes before they are used."""
        return self.options.gamma

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Return the table of upscaled global prototypes ``γ·C``, of all classes or of the client's own."""
        if message is None:
            return no_rows(self.task).tensors()
        table = Prototypes.received(message["prototypes"], message["classes"], self.task.num_classes)
        if self.options.classes == "own":
            table = table.only((local.counts > 0).to(table.present.device))
        return table.scaled(self.gamma).tensors()

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """``CE + λ·MSE(f(x), γ·C_y)`` (Eq. 7, ProtoNorm Eq. 15), or another form of the second term (Eq. 8)."""
        o = self.options
        return pulled(model, batch, received, state, o.lambda_, o.distance, by_class=o.regulariser == "prototypes")

    @property
    def statistics(self) -> Statistics:
        """Local prototypes are means over the training data."""
        return class_statistics(self.task.num_classes, self.options.prototypes)

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send the prototypes ``c_ij`` of the classes present (Eq. 3), and keep them for the rule ``local``."""
        means = class_means(statistics["sums"], statistics["counts"])
        local.state.update(means.tensors())
        rows, classes = means.to_send()
        payload = {"classes": classes, "prototypes": rows}
        if self.options.aggregation != "mean":
            payload["counts"] = statistics["counts"][classes].long()
        return payload

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Logits of the head, and −‖f(x) − C_j‖² of prototypes."""
        return nearest_scores(model(batch.x), state, Prototypes.of(received), Prototypes.of(state))

    def server_state(self) -> Tensors:
        """Start without global prototypes."""
        return no_rows(self.task).tensors()

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload | None:
        """Send the global prototypes that exist; nothing in the first round.

        A client that has not reported its classes yet is sent all, of which it keeps its own.
        """
        table = Prototypes.of(server)
        if self.declared.personal and f"classes.{client}" in server:
            table = table.only(server[f"classes.{client}"])
        rows, classes = table.to_send()
        return {"classes": classes, "prototypes": rows} if len(classes) else None

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """Update the global prototypes; add the geometry of the result to the diagnostics."""
        seen = SeenUploads(uploads, self.task.num_classes if self.declared.personal else 0)
        return seen.conclude(self.update(server, seen, round_number))

    def update(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """Eq. 6: ``C_j`` from the ``c_ij`` of the clients ``i ∈ 𝒩_j`` that report class ``j``."""
        divided = self.options.aggregation == "paper"
        return Aggregate(self.merge(server, mean_of(uploads, self.task, divided=divided)), {})

    def merge(self, server: Tensors, new: Prototypes) -> Tensors:
        """Return the server's state with new prototypes; the other classes keep theirs."""
        return {**server, **Prototypes.of(server).merged(new).tensors()}
