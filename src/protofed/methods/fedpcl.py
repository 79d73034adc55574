"""FedPCL: clients project features of frozen encoders, and contrast them with the prototypes of every client.

Tan, Long, Ma, Liu, Zhou and Jiang, "Federated Learning from Pre-Trained Models: A Contrastive Learning Approach",
NeurIPS 2022.

The two terms are those of PFLlib; projection, temperature and answers are those of the authors' code, whose loss is
another: it leaves the global term out (``global_weight = 0``), compares a prototype with the samples of the batch
instead of a sample with the prototypes, and shows each sample in two views.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofed.methods import register
from protofed.methods.contract import Aggregate, Method, Phase, Round, Terms, Traits, Update, Upload
from protofed.methods.given import Batch, Local, SplitModel, Tensors
from protofed.methods.parts.nearest import SeenUploads, nearest_scores
from protofed.methods.traits import GLOBAL, GLOBAL_OWN, LOCAL
from protofed.options import Options, remote
from protofed.prototypes.means import class_means, class_sums
from protofed.prototypes.table import Prototypes
from protofed.wire.schema import Field, Payload, Schema, prototype_schema

ABSENT = -1e4
"""Similarity to what does not count: far below any cosine, and finite, since an infinity has no gradient."""


@dataclass(frozen=True)
class FedPCLOptions(Options):
    """Hyperparameters."""

    projection_dim: int = remote(
        256, "length p of projected features (the authors' 256; 0 = no projection, as PFLlib)", least=0
    )
    temperature: float = remote(0.07, "temperature τ (the authors' 0.07; PFLlib: 1)", above=0)
    global_weight: float = remote(
        1.0, "weight of the contrast with global prototypes (PFLlib: 1; the authors' code: 0)", least=0
    )


@register
class FedPCL(Method[FedPCLOptions]):
    """``w·L_g + L_p`` on ``z = relu(W f(x) + b) / ‖…‖``, where ``f`` are frozen encoders, side by side.

    ::

        L(C) = −log( e^{z·C_y/τ} / Σ_c e^{z·C_c/τ} )
        L_g = L(C̄),    L_p = (1/M) Σ_i L(C_i)

    ``C_i`` are the class means of ``z`` of client i, ``C̄`` their means over clients, which stand in for classes
    that a client does not have. An extractor that is not frozen is trained as well; the head is not. Server state:
    ``prototypes`` ``(K, p)`` and ``present`` ``(K,)``, C̄; ``prototypes.NAME`` and ``present.NAME``, the last C_i of
    each client. Client state: ``prototypes`` and ``present`` of its own.
    """

    name = "fedpcl"
    summary = "projected features of frozen encoders, contrasted with the class means of every client"
    reference = "Tan et al., NeurIPS 2022, arXiv 2209.10083"
    Options = FedPCLOptions

    @classmethod
    def traits(cls, options: FedPCLOptions) -> Traits:
        """Everybody sees every single client's prototypes."""
        width = str(options.projection_dim or "d")
        return Traits(
            exchanges="prototypes",
            up=f"K_i·{width}",
            down=f"c·{width}",
            rules=(LOCAL, GLOBAL, GLOBAL_OWN),
            alike="nothing" if options.projection_dim else "features",
        )

    @property
    def width(self) -> int:
        """The length p of a prototype."""
        return self.options.projection_dim or self.task.feature_dim

    @property
    def upload_schema(self) -> Schema:
        """``k`` class means and their classes."""
        return prototype_schema(self.task.num_classes, "p", {"p": self.width})

    @property
    def broadcast_schema(self) -> Schema:
        """The class means of all clients, and a number for each that tells one client's from another's."""
        K, clients = self.task.num_classes, self.task.clients or 1
        fields = {
            "classes": Field(("c",), "label", parameter=False, unique=False),
            "owners": Field(("c",), "count", parameter=False),
            "prototypes": Field(("c", "p")),
        }
        return Schema(fields, K, {"p": self.width}, {"c": K * clients})

    # The client.

    def extend(self, model: SplitModel) -> None:
        """Add the projection."""
        if self.options.projection_dim:
            model.extras["projection"] = nn.Linear(model.feature_dim, self.options.projection_dim)

    def client_state(self, counts: Tensor) -> Tensors:
        """Start without prototypes of its own."""
        return self.no_rows().tensors()

    def no_rows(self) -> Prototypes:
        """Return a table in which no class has a prototype."""
        return Prototypes.none(self.task.num_classes, self.width, self.task.dtype)

    def receive(self, local: Local, message: Payload | None) -> Tensors:
        """Return ``sets`` ``(M, K, p)``, the C_i with C̄ in their gaps, and C̄ itself."""
        none = self.no_rows()
        if message is None:
            return {"sets": none.rows.unsqueeze(0), **none.tensors()}
        rows, owners = message["prototypes"], message["owners"].unique(return_inverse=True)[1]
        sets = rows.new_zeros(int(owners.max()) + 1, *none.rows.shape)
        held = torch.zeros(sets.shape[:2], dtype=torch.bool, device=rows.device)
        sets[owners, message["classes"]], held[owners, message["classes"]] = rows, True
        shared = Prototypes(sets.sum(0) / held.sum(0).clamp(min=1).unsqueeze(-1), held.any(0))
        return {"sets": torch.where(held.unsqueeze(-1), sets, shared.rows), **shared.tensors()}

    def round(self, number: int) -> Round:
        """All is trained but the head."""
        return Round((Phase((Update(self.loss, trainable=lambda name: not name.startswith("head.")),)),))

    def project(self, model: SplitModel, features: Tensor) -> Tensor:
        """Return ``z``, of length 1."""
        projected = model.extras["projection"](features).relu() if self.options.projection_dim else features
        return F.normalize(projected, dim=-1)

    def loss(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Terms:
        """``w·L_g`` and ``L_p``, 0 before there are prototypes."""
        o, output = self.options, model(batch.x)
        z, shared = self.project(model, output.features), Prototypes.of(received)
        terms = {"contrast": among_prototypes(z, batch, received["sets"], shared.present, o.temperature)}
        if o.global_weight:
            globally = among_prototypes(z, batch, shared.rows.unsqueeze(0), shared.present, o.temperature)
            terms["global_contrast"] = o.global_weight * globally
        return terms, output

    def upload(self, local: Local, statistics: Tensors) -> Payload:
        """Send the class means of ``z``, and keep them for the rule ``local``."""
        features, labels = local.features()
        with torch.no_grad():
            sums, counts = class_sums(self.project(local.model, features), labels, self.task.num_classes, None)
        means = class_means(sums, counts)
        local.state.update(means.tensors())
        rows, classes = means.to_send()
        return {"classes": classes, "prototypes": rows}

    def scores(self, model: SplitModel, batch: Batch, received: Tensors, state: Tensors) -> Tensors:
        """−‖z − C_j‖² of the client's own prototypes and of the global ones."""
        output = model(batch.x)
        projected = output._replace(features=self.project(model, output.features))
        found = nearest_scores(projected, state, Prototypes.of(received), Prototypes.of(state))
        return {rule: found[rule] for rule in self.rules}

    # The server.

    def server_state(self) -> Tensors:
        """Start without prototypes."""
        return self.no_rows().tensors()

    def broadcast(self, server: Tensors, round_number: int, client: str | None = None) -> Payload | None:
        """Send the prototypes of all clients; nothing in the first round."""
        sets = last_sent(server)
        if not sets:
            return None
        rows, classes = zip(*(table.to_send() for table in sets), strict=True)
        owners = torch.cat([torch.full((len(c),), i) for i, c in enumerate(classes)])
        return {"classes": torch.cat(classes), "owners": owners, "prototypes": torch.cat(rows)}

    def aggregate(self, server: Tensors, uploads: Iterable[Upload], round_number: int) -> Aggregate:
        """Note each client's prototypes in place of its last; C̄ is the mean over all that have a class."""
        seen, state = SeenUploads(uploads, 0), dict(server)
        for client, payload in seen:
            own = Prototypes.received(payload["prototypes"], payload["classes"], self.task.num_classes)
            state |= {f"{name}.{client}": tensor for name, tensor in own.tensors().items()}
        sets = [self.no_rows(), *last_sent(state)]
        held = torch.stack([table.present for table in sets])
        rows = torch.stack([table.rows for table in sets]).double().sum(0)
        mean = (rows / held.sum(0).clamp(min=1).unsqueeze(-1)).to(self.task.dtype)
        return seen.conclude(Aggregate({**state, **Prototypes(mean, held.any(0)).tensors()}, {}))


def last_sent(server: Tensors) -> list[Prototypes]:
    """Return the last prototypes of every client that has sent any, in the order of their names."""
    names = sorted(name.partition(".")[2] for name in server if name.startswith("present."))
    tables = [Prototypes(server[f"prototypes.{name}"], server[f"present.{name}"]) for name in names]
    return [table for table in tables if bool(table.present.any())]


def among_prototypes(z: Tensor, batch: Batch, sets: Tensor, present: Tensor, temperature: float) -> Tensor:
    """Return the mean over samples and sets of ``−log(e^{z·C_y/τ} / Σ_c e^{z·C_c/τ})``, 0 without ``C_y``."""
    logits = torch.einsum("bp,mkp->mbk", z, sets).masked_fill(~present, ABSENT) / temperature
    own = batch.y.view(1, -1, 1).expand(len(sets), -1, 1)
    apart = -logits.log_softmax(-1).gather(-1, own).squeeze(-1).mean(0)
    return batch.mean(torch.where(present[batch.y], apart, 0.0))
