"""Distance between the answers of two classifiers."""

from __future__ import annotations

from torch import Tensor

from protofed.methods.contract import Batch


def divergence(batch: Batch, teacher: Tensor, student: Tensor) -> Tensor:
    """Return ``KL(softmax(teacher) ‖ softmax(student))`` of ``(B, K)`` logits, the mean over the batch."""
    p, log_p, log_q = teacher.softmax(-1), teacher.log_softmax(-1), student.log_softmax(-1)
    return batch.mean((p * (log_p - log_q)).sum(-1))
