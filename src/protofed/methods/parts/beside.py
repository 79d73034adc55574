"""Class means that travel beside the weights of FedAvg, and the contrast of features with prototypes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.methods.contract import Aggregate, Batch, Local, Statistics, Tensors, Upload
from protofed.methods.parts.averaged import average
from protofed.methods.parts.nearest import class_statistics, mean_of, no_rows
from protofed.prototypes.finch import finch
from protofed.prototypes.means import class_means
from protofed.prototypes.table import Prototypes
from protofed.wire.schema import Field, Payload, Schema

if TYPE_CHECKING:
    from protofed.methods.fedavg import FedAvg

    Base = FedAvg[Any]
else:
    Base = object

LEAST = 1e-4  #: Least cosine of which a root is taken: that of 0 has no slope


class MeansBeside(Base):
    """Mixin before FedAvg: clients also send the means of their classes, of which :meth:`prototypes` makes a table.

    Its options hold ``prototypes``, when the means are taken. Server state: the weights, and that table: means over
    the clients as ``prototypes`` ``(K, d)`` and ``present`` ``(K,)``.
    """

    @property
    def most(self) -> int:
        """Prototypes that the server broadcasts of one class, at most."""
        return 1

    @property
    def sent(self) -> int:
        """Rows that a client sends of one class, at most."""
        return 1

    def prototypes(self, table: Tensors, uploads: Iterable[Upload]) -> Tensors:
        """Return the new table of the server, from the ``classes`` and ``prototypes`` of a round's uploads.

        ``C_c`` is the plain mean over the clients that report c; other classes keep theirs.
        """
        return Prototypes.of(table).merged(mean_of(uploads, self.task)).tensors()

    def first_table(self) -> Tensors:
        """Return the table of the server before the first round."""
        return no_rows(self.task).tensors()

    def rows(self, table: Tensors) -> tuple[Tensor, Tensor]:
        """Return the prototypes ``(k, d)`` of the table, and their classes ``(k,)``."""
        return Prototypes.of(table).to_send()

    @property
    def statistics(self) -> Statistics | None:
        """Class means are means over the training data."""
        return class_statistics(self.task.num_classes, self.options.prototypes)

    @cached_property
    def broadcast_schema(self) -> Schema:
        """The weights, and the prototypes with their classes."""
        return _with_rows(super().broadcast_schema, self.task.feature_dim, self.most)

    @cached_property
    def upload_schema(self) -> Schema:
        """The weights, ``n_i``, and rows of each class present."""
        return _with_rows(super().upload_schema, self.task.feature_dim, self.sent)

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Keep ``w^t`` and the table."""
        if message is None:
            return super().receive(local, None) | self.first_table()
        table = Prototypes.received(message["prototypes"], message["classes"], self.task.num_classes)
        return {name: message[name] for name in self.initial} | table.tensors()

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send ``w_i``, ``n_i`` and the class means."""
        payload = super().upload(local, statistics)
        rows, classes = class_means(statistics["sums"], statistics["counts"]).to_send()
        return {**payload, "classes": classes, "prototypes": rows}

    def server_state(self) -> Tensors:
        """Start with ``w^0`` and an empty table."""
        return {**super().server_state(), **self.first_table()}

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload:
        """Send ``w^t`` and the prototypes that there are."""
        rows, classes = self.rows(server)
        return {**{name: server[name] for name in self.initial}, "classes": classes, "prototypes": rows}

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """Average the weights as FedAvg, and make a table of the class means."""
        means: list[Upload] = []

        def weights() -> Iterator[Upload]:
            for client, payload in uploads:
                kept = {n: t for n, t in payload.items() if n not in ("classes", "prototypes")}
                means.append(Upload(client, {n: payload[n] for n in ("classes", "prototypes")}))
                yield Upload(client, kept)

        old = {name: server[name] for name in self.initial}
        new = average(old, weights(), self.options.weighting)
        table = {name: tensor for name, tensor in server.items() if name not in old}
        return Aggregate({**new, **self.prototypes(table, means)}, {})


class ClustersBeside(MeansBeside):
    """Mixin before FedAvg: the server clusters the rows of each class by FINCH, and broadcasts the clusters' means.

    Its options hold ``clusters``, the most of one class. The table is ``clusters`` ``(K, c, d)`` with ``held``
    ``(K, c)``; a class that nobody reports keeps its own.
    """

    @property
    def most(self) -> int:
        """The largest number of clusters of one class."""
        return int(self.options.clusters)

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Keep ``w^t`` and the table of clusters."""
        if message is None:
            return super().receive(local, None)
        table, classes = self.first_table(), message["classes"]
        rows, present = table["clusters"].to(message["prototypes"]), table["held"].to(classes.device)
        for c in classes.unique().tolist():
            own = message["prototypes"][classes == c][: self.most]
            rows[c, : len(own)], present[c, : len(own)] = own, True
        return {name: message[name] for name in self.initial} | {"clusters": rows, "held": present}

    def first_table(self) -> Tensors:
        """Start without clusters."""
        K, c, d = self.task.num_classes, self.most, self.task.feature_dim
        return {
            "clusters": torch.zeros(K, c, d, dtype=self.task.dtype),
            "held": torch.zeros(K, c, dtype=torch.bool),
        }

    def rows(self, table: Tensors) -> tuple[Tensor, Tensor]:
        """Send the clusters that there are."""
        return table["clusters"][table["held"]], table["held"].nonzero()[:, 0]

    def prototypes(self, table: Tensors, uploads: Iterable[Upload]) -> Tensors:
        """Cluster the rows of each class that somebody reports; a cluster's prototype is its mean."""
        payloads = [upload.payload for upload in uploads]
        rows, present = table["clusters"].clone(), table["held"].clone()
        sent = torch.cat([p["prototypes"] for p in payloads]).to(self.task.dtype)
        classes = torch.cat([p["classes"] for p in payloads])
        for c in classes.unique().tolist():
            found = cluster_means(sent[classes == c], self.most)
            rows[c], present[c] = 0.0, False
            rows[c, : len(found)], present[c, : len(found)] = found, True
        return {"clusters": rows, "held": present}


def cluster_means(rows: Tensor, most: int) -> Tensor:
    """Return the means of the clusters that FINCH finds, ``(c, d)``: the largest first, and at most ``most``."""
    found = finch(rows)
    order = found.bincount().argsort(descending=True, stable=True)[:most]
    return torch.stack([rows[(found == cluster).to(rows.device)].mean(0) for cluster in order])


def centres(table: Tensors) -> Prototypes:
    """Return the mean of each class's clusters."""
    rows, present = table["clusters"], table["held"]
    return Prototypes(rows.sum(1) / present.sum(1, keepdim=True).clamp(min=1), present.any(1))


def _with_rows(schema: Schema, d: int, most: int) -> Schema:
    """Return a schema with up to ``most`` rows of length ``d`` for each class: ``k`` if it is one, else ``c``."""
    number = "k" if most == 1 else "c"
    rows = {
        "classes": Field((number,), "label", parameter=False, unique=most == 1),
        "prototypes": Field((number, "d")),
    }
    K = schema.num_classes
    return Schema({**schema.fields, **rows}, K, {**schema.sizes, "d": d}, {**schema.limits, number: most * K})


def contrast(
    features: Tensor, batch: Batch, rows: Tensor, present: Tensor, temperature: float, power: float = 1.0
) -> Tensor:
    """Return ``−log(Σ_{p ∈ P_y} e^{cos(f, p)^α/τ} / Σ_p e^{cos(f, p)^α/τ})`` of each sample, 0 where P_y is empty.

    Args:
        rows: ``(K, c, d)``, up to c prototypes of each class.
        temperature: τ.
        power: α; if it is not 1, cosines count as :data:`LEAST` at least.
    """
    cosines = F.normalize(features, dim=-1) @ F.normalize(rows, dim=-1).flatten(0, 1).T
    near = cosines if power == 1 else cosines.clamp(min=LEAST).pow(power)
    absent = -1e4 / temperature  # far below any cosine, and finite: an infinity has no gradient
    logits = (near / temperature).unflatten(-1, present.shape).masked_fill(~present, absent)
    own = logits.gather(-2, batch.y.view(-1, 1, 1).expand(-1, 1, logits.shape[-1])).squeeze(-2)
    apart = logits.flatten(-2).logsumexp(-1) - own.logsumexp(-1)
    return torch.where(present.any(-1)[batch.y], apart, 0.0)
