"""Rules that look at all uploads of a round together: robust means, and Krum."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from protofed.methods.contract import Upload
from protofed.robust.findings import Findings
from protofed.robust.options import RobustOptions
from protofed.robust.rules import geometric_median, krum_scores, median, trimmed_mean
from protofed.robust.vectors import Vectors, put_back


def hostile(clients: int, options: RobustOptions) -> int:
    """Return how many of some clients are assumed to be hostile."""
    return math.ceil(options.attackers * clients)


def pooled(uploads: Sequence[Upload], found: Sequence[Vectors], options: RobustOptions) -> list[Upload]:
    """Return the uploads with each vector replaced by one that stands for all vectors of its class or tensor.

    Whatever the method does with them (a mean, weighted or not; training) then starts from the robust vector, and
    still sees which clients reported which classes.
    """
    scores = client_scores(len(uploads), found, options) if options.rule == "krum" else torch.zeros(0)
    changed = []
    for vectors in found:
        values = vectors.values.clone()
        for _, rows in vectors.by_class():
            values[rows] = _one_for_all(
                vectors.values[rows], scores[vectors.senders[rows]] if len(scores) else None, options
            )
        changed.append(vectors.with_values(values))
    return put_back(uploads, changed)


def _one_for_all(values: Tensor, scores: Tensor | None, options: RobustOptions) -> Tensor:
    """Return the vector ``(D,)`` that stands for ``(n, D)`` of them."""
    if options.rule == "median":
        return median(values)
    if options.rule == "trimmed":
        return trimmed_mean(values, hostile(len(values), options))
    if options.rule == "geometric_median":
        return geometric_median(values)
    assert scores is not None
    return values[int(scores.argmin())]


def without_outliers(
    uploads: Sequence[Upload], found: Sequence[Vectors], number: int, options: RobustOptions, findings: Findings
) -> list[Upload]:
    """Return the uploads without the ``number`` that have the highest scores of Krum."""
    scores = client_scores(len(uploads), found, options)
    worst = set(scores.argsort(stable=True)[len(uploads) - number :].tolist())
    for index in sorted(worst):
        findings.left_out[uploads[index].client] = "among those least like the others (multi_krum)"
    return [upload for index, upload in enumerate(uploads) if index not in worst]


def client_scores(clients: int, found: Sequence[Vectors], options: RobustOptions) -> Tensor:
    """Return Krum's score ``(clients,)`` of every client, over all that it shares with others.

    Clients send different classes, so the squared distance of two of them is the mean over the classes and tensors
    that both sent. A hostile client is so recognised by the classes in which it is outvoted, and its prototypes of
    classes in which it is not are distrusted with it.
    """
    total = torch.zeros(clients, clients, dtype=torch.float64)
    shared = torch.zeros(clients, clients, dtype=torch.float64)
    for vectors in found:
        for _, rows in vectors.by_class():
            senders, values = _one_each(vectors.senders[rows], vectors.values[rows].double())
            grid = senders.unsqueeze(1), senders.unsqueeze(0)
            total[grid] += torch.cdist(values, values, compute_mode="donot_use_mm_for_euclid_dist").square()
            shared[grid] += 1
    return krum_scores(total / shared, hostile(clients, options))


def _one_each(senders: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the senders without repetition, and the mean ``(m, D)`` of what each sent."""
    names, places = senders.unique(return_inverse=True)
    sums = torch.zeros(len(names), values.shape[1], dtype=values.dtype).index_add_(0, places, values)
    return names, sums / torch.bincount(places, minlength=len(names)).unsqueeze(1)
