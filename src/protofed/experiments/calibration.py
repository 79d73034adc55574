"""Measurement of the models that a machine computes faster in bfloat16."""

from __future__ import annotations

import copy
import statistics
import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from protofed.visits.batches import normalise
from protofed.visits.client import Member
from protofed.visits.roster import Roster

if TYPE_CHECKING:
    from protofed.models import SplitModel

STEPS = 5
GAIN = 1.1  #: Minimum speed-up of a training step for which bfloat16, which costs precision, is used


def faster_in_bfloat16(roster: Roster) -> list[str]:
    """Return the kinds of models whose training step bfloat16 makes faster by :data:`GAIN`.

    The gain depends on the model too: on CPUs with bfloat16 units, plain convolutions gain and depthwise ones lose.
    """
    kinds = []
    for kind, model in roster.models.items():
        member = max((m for m in roster.values() if m.kind == kind), key=lambda m: len(m.train))
        if len(member.train) >= 2 and _gain(model, member) >= GAIN:
            kinds.append(kind)
    return kinds


def _gain(model: SplitModel, member: Member) -> float:
    """Return the speed-up of a step in bfloat16: the ratio of median times, measured alternately."""
    trial = copy.deepcopy(model).train()
    dtype = next(model.parameters()).dtype
    rows = torch.arange(len(member.train), device=member.train.y.device)[: member.plan.batch_size]
    x, y = normalise(member.train.x[rows], dtype), member.train.y[rows]
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for step in range(STEPS + 2):
        for low, times in seconds.items():
            trial.in_bfloat16 = low
            elapsed = _step(trial, x, y)
            if step >= 2:  # the first steps allocate memory and choose kernels
                times.append(elapsed)
    return statistics.median(seconds[False]) / statistics.median(seconds[True])


def _step(model: SplitModel, x: Tensor, y: Tensor) -> float:
    start = time.perf_counter()
    loss = torch.nn.functional.cross_entropy(model(x).logits, y)
    torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
    return time.perf_counter() - start
