"""What every prototype method's client shares: one vector per class, up and down (FedProto's client).

The methods differ in what the server makes of the uploads, and in how vectors are packed; their own files say so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from protofed.methods.contract import Aggregate, Batch, Exchange, Local, Method, Task, Tensors, Terms, Upload
from protofed.options import option
from protofed.prototypes.geometry import summary
from protofed.prototypes.inference import most_likely, nearest, squared_pull
from protofed.prototypes.means import RunningMean, class_means, class_sums
from protofed.prototypes.table import Prototypes
from protofed.wire.schema import Payload, Schema, prototype_schema

if TYPE_CHECKING:
    from protofed.models import Output


@dataclass(frozen=True)
class PrototypeOptions:
    """Options of a client that is regularised towards global prototypes."""

    lambda_: float = option(1.0, "weight λ of the prototype term")
    gamma: float = option(1.0, "upscaling γ of the global prototypes (ProtoNorm Eq. 15, Table 5)")
    prototypes: Literal["after", "during"] = option(
        "after", "local prototypes from a pass after training (Eq. 3), or during the last local epoch"
    )

    def __post_init__(self) -> None:
        for name in ("lambda_", "gamma"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name.rstrip('_')} must be at least 0, not {getattr(self, name)}")


class PrototypeMethod(Method):
    """Base of the prototype methods.

    Server state: ``prototypes`` ``(K, d)`` and ``present`` ``(K,)``: a class nobody reports keeps its last
    prototype, a class never reported has none. Client state: ``prototypes`` and ``present`` of its own.
    """

    exchanges: Exchange = "prototypes"
    up = "K_i·d"
    down = "K·d"
    same_feature_dim = True
    Options = PrototypeOptions

    def __init__(self, options: Any, task: Task) -> None:
        super().__init__(options, task)
        self.schema = prototype_schema(task.num_classes, "d", {"d": task.feature_dim})

    @property
    def upload_schema(self) -> Schema | None:
        """``k`` local prototypes and their classes."""
        return self.schema

    @property
    def broadcast_schema(self) -> Schema | None:
        """``k`` global prototypes and their classes."""
        return self.schema

    # The client.

    @property
    def statistics_from(self) -> Literal["after", "during"]:
        """Local prototypes are means over the training data."""
        result: Literal["after", "during"] = self.options.prototypes
        return result

    @property
    def gamma(self) -> float:
        """Factor on the global prototypes before they are used."""
        return float(self.options.gamma)

    def client_state(self, counts: torch.Tensor) -> Tensors:
        """Start without local prototypes."""
        return no_prototypes(self.task).tensors()

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Return the table of upscaled global prototypes ``γ·C``."""
        if message is None:
            return no_prototypes(self.task).tensors()
        table = Prototypes.received(message["prototypes"], message["classes"], self.task.num_classes)
        return table.scaled(self.gamma).tensors()

    def loss(self, model: Any, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """``CE + λ·MSE(f(x), γ·C_y)`` (FedProto Eq. 7, ProtoNorm Eq. 15)."""
        output = model(batch.x)
        pull = squared_pull(output.features, batch.y, Prototypes.of(received))
        return {
            "cross_entropy": batch.cross_entropy(output.logits),
            "prototype": self.options.lambda_ * batch.mean(pull),
        }, output

    def statistics(self, output: Output, batch: Batch) -> Tensors:
        """Sums and counts per class."""
        sums, counts = class_sums(output.features, batch.y, self.task.num_classes, batch.weight)
        return {"sums": sums, "counts": counts}

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send the prototypes of the classes present (Eq. 3) and keep them for the ``local`` rule."""
        means = class_means(statistics["sums"], statistics["counts"])
        local.state.update(means.tensors())
        rows, classes = means.to_send()
        return {"classes": classes, "prototypes": rows}

    @property
    def rules(self) -> tuple[str, ...]:
        """Head, own prototypes, global prototypes over all or over own classes."""
        return ("head", "local", "global", "global_own")

    def predict(self, model: Any, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """Nearest prototypes; the head decides while there is none."""
        output = model(batch.x)
        head = most_likely(output.logits)
        own, shared = Prototypes.of(state), Prototypes.of(received)

        def by(table: Prototypes) -> torch.Tensor:
            return torch.where(table.present.any(), nearest(output.features, table), head)

        return {
            "head": head,
            "local": by(own),
            "global": by(shared),
            "global_own": by(shared._replace(present=shared.present & own.present)),
        }

    # The server.

    def server_state(self) -> Tensors:
        """Start without global prototypes."""
        return no_prototypes(self.task).tensors()

    def broadcast(self, server: Tensors, round: int, client: str | None = None) -> Payload | None:
        """Send the global prototypes that exist; nothing in the first round."""
        rows, classes = Prototypes.of(server).to_send()
        return {"classes": classes, "prototypes": rows} if len(classes) else None

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """Update the global prototypes; add the geometry of the result to the diagnostics."""
        norms = _Norms()
        state, diagnostics = self.update(server, norms.watch(uploads), round)
        geometry = summary(*Prototypes.of(state))
        local = {"local_norm_mean": norms.mean()} if norms.rows else {}
        return Aggregate(state, {**diagnostics, **geometry, **local})

    def update(self, server: Tensors, uploads: Iterable[Upload], round: int) -> Aggregate:
        """Return the server's state after ``round``: what a prototype method has to say for itself."""
        raise NotImplementedError

    def mean_of(self, uploads: Iterable[Upload]) -> RunningMean:
        """Return the mean over the clients ``𝒩_j`` that report class ``j``, weighted by ``counts`` if sent."""
        mean = RunningMean(self.task.num_classes, self.task.feature_dim)
        for upload in uploads:
            mean.add(upload.payload["classes"], upload.payload["prototypes"], upload.payload.get("counts"))
        return mean

    def merge(self, server: Tensors, new: Prototypes) -> Tensors:
        """Return the server state with the prototypes of ``new``; other classes keep theirs."""
        return {**server, **Prototypes.of(server).merged(new).tensors()}


def no_prototypes(task: Task) -> Prototypes:
    """Return a table ``(K, d)`` in which no class has a prototype."""
    return Prototypes.none(task.num_classes, task.feature_dim, task.dtype)


class _Norms:
    """Mean length of the prototypes in a stream of uploads."""

    def __init__(self) -> None:
        self.total = 0.0
        self.rows = 0

    def watch(self, uploads: Iterable[Upload]) -> Iterator[Upload]:
        for upload in uploads:
            prototypes = upload.payload["prototypes"]
            self.total += float(prototypes.norm(dim=-1).sum())
            self.rows += len(prototypes)
            yield upload

    def mean(self) -> float:
        return self.total / self.rows
