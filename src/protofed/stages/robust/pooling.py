"""Rules that need all uploads of a round at once: robust means and Multi-Krum."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from protofed.methods.contract import Upload
from protofed.runs.findings import Findings
from protofed.stages.robust.options import RobustOptions
from protofed.stages.robust.rules import geometric_median, krum_scores, median, trim_mean
from protofed.stages.robust.vectors import Vectors, put_back


def hostile(clients: int, options: RobustOptions) -> int:
    """Return the number of clients that are assumed to be hostile."""
    return math.ceil(options.attackers * clients - 1e-9)  # 0.07 · 100 is above 7


def pool(uploads: Sequence[Upload], found: Sequence[Vectors], options: RobustOptions) -> list[Upload]:
    """Replace each vector by one robust vector for its class or tensor.

    Whatever the method computes (a weighted or unweighted mean, or training) then starts from the robust vector,
    while it still sees which clients reported which classes.
    """
    changed = []
    for vectors in found:
        values = vectors.values.clone()
        for _, rows in vectors.by_class():
            values[rows] = _one_for_all(vectors.values[rows], options.rule, hostile(len(uploads), options))
        changed.append(vectors.with_values(values))
    return put_back(uploads, changed)


def _one_for_all(values: Tensor, rule: str, attackers: int) -> Tensor:
    if rule == "median":
        return median(values)
    if rule == "trimmed":
        return trim_mean(values, attackers)  # who may all have reported this class
    return geometric_median(values)


def without_outliers(
    uploads: Sequence[Upload], found: Sequence[Vectors], number: int, options: RobustOptions, findings: Findings
) -> list[Upload]:
    """Leave out the ``number`` uploads with the highest Krum scores."""
    scores = client_scores(len(uploads), found, options)
    worst = set(scores.argsort(stable=True)[len(uploads) - number :].tolist())
    for index in sorted(worst):
        findings.left_out[uploads[index].client] = "among those least like the others (multi_krum)"
    return [upload for index, upload in enumerate(uploads) if index not in worst]


def client_scores(clients: int, found: Sequence[Vectors], options: RobustOptions) -> Tensor:
    """Return the Krum score ``(clients,)`` of every client.

    Clients send different classes, so the squared distance between two of them is the mean over the classes and
    tensors that both sent. A hostile client is thus recognised by the classes in which it is outvoted, and its
    prototypes of other classes are distrusted as well.
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
    """Return the distinct senders ``(m,)`` and the mean ``(m, D)`` of the vectors of each."""
    names, places = senders.unique(return_inverse=True)
    sums = torch.zeros(len(names), values.shape[1], dtype=values.dtype).index_add_(0, places, values)
    return names, sums / torch.bincount(places, minlength=len(names)).unsqueeze(1)
