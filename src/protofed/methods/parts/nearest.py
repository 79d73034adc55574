"""Parts of methods with prototypes: the pull towards them, scores by the nearest, and what uploads show."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor

from protofed.methods.contract import Aggregate, Method, Statistics, Terms, Upload
from protofed.methods.given import Batch, Output, SplitModel, Task, Tensors
from protofed.methods.parts.prior import cross_entropy, head_scores
from protofed.methods.traits import GLOBAL, GLOBAL_OWN, HEAD, LOCAL
from protofed.prototypes.geometry import summary
from protofed.prototypes.inference import Distance, closeness, pull, pull_of_means
from protofed.prototypes.means import RunningMean, class_sums
from protofed.prototypes.table import Prototypes


def no_rows(task: Task) -> Prototypes:
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
    """Return cross-entropy and the pull of features towards prototypes (FedProto, Eq. 7).

    Args:
        received: The prototypes, as :meth:`Prototypes.tensors` names their parts.
        by_class: Pull the batch's prototypes (Eq. 8) instead of its samples.

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


def nearest_scores(
    output: Output,
    state: Tensors,
    shared: Prototypes,
    own: Prototypes,
    score: Callable[[Tensor, Prototypes], Tensor] = closeness,
) -> Tensors:
    """Return the logits of the head and −‖f(x) − C_j‖², with whose softmax Snell et al. (2017, Eq. 2) classify.

    Args:
        score: Scores of features ``(B, d)`` for all classes, ``(B, K)``.

    Returns:
        ``(B, K)`` scores of the rules of the head, and of the nearest own, global, and global prototype of the
        client's own classes; the head's while there are none of a kind. Classes without a prototype get the least
        number of their type.
    """
    answers = head_scores(output.logits, state)
    among_own = shared._replace(present=shared.present & own.present)
    tables = {LOCAL.name: own, GLOBAL.name: shared, GLOBAL_OWN.name: among_own}
    head = answers[HEAD.name]
    near = {n: torch.where(t.present.any(), score(output.features, t), head) for n, t in tables.items()}
    return {**answers, **near}


def class_statistics(num_classes: int, when: Literal["after", "during", "before"]) -> Statistics:
    """Return the ``sums`` of the features of each class and their ``counts``."""

    def of(output: Output, batch: Batch) -> Tensors:
        sums, counts = class_sums(output.features, batch.y, num_classes, batch.weight)
        return {"sums": sums, "counts": counts}

    return Statistics(of, when)


def mean_of(uploads: Iterable[Upload], task: Task, *, divided: bool = False) -> Prototypes:
    """Return the mean over the clients ``𝒩_j`` that report class ``j``, weighted by ``counts`` if sent.

    Args:
        divided: Divide it once more by the number of those clients (FedProto, Eq. 6 to the letter).
    """
    mean = RunningMean(task.num_classes, task.feature_dim)
    for upload in uploads:
        mean.add(upload.payload["classes"], upload.payload["prototypes"], upload.payload.get("counts"))
    found = mean.mean()
    return found._replace(rows=found.rows / mean.reporters.clamp(min=1).unsqueeze(-1)) if divided else found


def as_sent(method: Method, own: Mapping[str, Prototypes]) -> dict[str, Prototypes]:
    """Return clients' prototypes by name, the entries that the method's ``pack`` leaves out set to 0."""
    tables, pack = dict(own), getattr(method, "pack", None)
    if pack is None:
        return tables
    for name, prototypes in own.items():
        rows, classes = prototypes.to_send()
        payload = method.read(pack({"classes": classes, "prototypes": rows}), {})
        tables[name] = Prototypes.received(payload["prototypes"], classes, len(prototypes.rows))
    return tables


class SeenUploads(Iterable[Upload]):
    """A stream of uploads, and what it has shown of the clients so far.

    Args:
        num_classes: ``K`` to note every client's classes, 0 to note none.

    Attributes:
        classes: As ``classes.NAME``, ``(K,)`` bool, the classes that a client reported.
    """

    def __init__(self, uploads: Iterable[Upload], num_classes: int) -> None:
        self.uploads, self.num_classes = uploads, num_classes
        self.classes: Tensors = {}
        self.total, self.rows = 0.0, 0

    def __iter__(self) -> Iterator[Upload]:
        for upload in self.uploads:
            classes, prototypes = upload.payload["classes"], upload.payload["prototypes"]
            if self.num_classes:
                held = torch.zeros(self.num_classes, dtype=torch.bool).index_fill(0, classes, True)
                self.classes[f"classes.{upload.client}"] = held
            self.total += float(prototypes.norm(dim=-1).sum())
            self.rows += len(prototypes)
            yield upload

    def conclude(self, new: Aggregate) -> Aggregate:
        """Return an update, which has consumed the uploads, with what was seen and the geometry of the result."""
        state = {**new.state, **self.classes}
        # A server whose own training has diverged keeps its last state, which it can say only if this is no error.
        geometry = summary(*Prototypes.of(state)) if bool(state["prototypes"].isfinite().all()) else {}
        length = {"local_norm_mean": self.total / self.rows} if self.rows else {}
        return Aggregate(state, {**new.diagnostics, **geometry, **length})
