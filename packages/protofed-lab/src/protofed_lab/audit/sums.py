"""Attacks on the sums of closed forms, whose features anybody can compute: they ask for no shadow federation."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed_lab.audit.attacks import SERVER
from protofed_lab.audit.findings import Finding
from protofed_lab.audit.measures import auc, auc_error
from protofed_lab.audit.membership import outputs
from protofed_lab.audit.seen import Seen

CLOSE = 0.01  #: Distance from a sample's features, as a share of their length, at which they count as read
LOST = 1e-6  #: Share of the largest eigenvalue of a second moment below which rounding hides a direction


def sums(seen: Seen) -> list[Finding]:
    """Attack class means and second moments; nothing for methods that send no sums of fixed features."""
    method: Any = seen.method
    if not hasattr(method, "sums_of"):
        return []
    return [alone(seen, method), *([span(seen, method)] if method.second else [])]


def alone(seen: Seen, method: Any) -> Finding:
    """Count the class means that are the features of one training sample: classes of one sample have no others."""
    read, sent, clients = 0, 0, 0
    for sender in seen.senders:
        means = method.sums_of(sender.payload).means
        rows = means.rows[means.present]
        features = outputs(sender.model, sender.train)[0]
        apart = torch.cdist(rows, features) / features.norm(dim=1).clamp(min=1e-12)
        found = int((apart.amin(1) < CLOSE).sum())
        read, sent, clients = read + found, sent + len(rows), clients + (found > 0)
    note = (
        f"{read} of {sent} class means, at {clients} of {len(seen.senders)} clients, are the features of one sample"
    )
    share = read / max(1, sent)
    return Finding(
        "Which features can be read?", SERVER, "share of class means", share, 0.0, 0.0, note, "sums_read"
    )


def span(seen: Seen, method: Any) -> Finding:
    """Tell training samples from others by their distance to what a second moment spans.

    ``Σ φφᵀ`` of fewer than d samples has no other directions than theirs.
    """
    attack, measure, key = "Was a sample used, by the second moment?", "AUC", "sums_span"
    members: list[Tensor] = []
    others: list[Tensor] = []
    clients = 0
    for sender in seen.senders:
        n, d = len(sender.train), method.task.feature_dim
        if not 0 < n < d or not len(sender.others):
            continue
        values, vectors = torch.linalg.eigh(method.sums_of(sender.payload).moment)
        basis = vectors[:, d - n :][:, values[d - n :] > LOST * values[-1]]
        train, rest = (F.normalize(outputs(sender.model, s)[0], dim=1) for s in (sender.train, sender.others))
        near = [-(x - x @ basis @ basis.mT).norm(dim=1) for x in (train, rest)]
        members.append(near[0])
        others.append(near[1])
        clients += 1
    if not clients:
        note = "every client has at least as many samples as features, or no other samples to compare with"
        return Finding(attack, SERVER, measure, None, 0.5, note=note, key=key)
    inside, outside = torch.cat(members), torch.cat(others)
    value = auc(inside, outside)
    note = (
        f"{clients} clients with fewer samples than features: {len(inside)} training samples, {len(outside)} others"
    )
    return Finding(attack, SERVER, measure, value, 0.5, auc_error(value, len(inside), len(outside)), note, key)
