"""Which models a machine computes faster in bfloat16, found out by trying."""

from __future__ import annotations

import copy
import statistics
import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from protofed.training.batches import normalise
from protofed.training.client import Member
from protofed.training.roster import Roster

if TYPE_CHECKING:
    from protofed.models import SplitModel

STEPS = 5
GAIN = 1.1
"""bfloat16 is taken where a training step is at least so many times faster: it costs precision."""


def faster_in_bfloat16(roster: Roster) -> list[str]:
    """Return the kinds of models whose training step bfloat16 makes faster by :data:`GAIN`.

    It is no matter of the processor alone: on CPUs with bfloat16 units, plain convolutions gain and depthwise ones
    lose.
    """
    found = []
    for kind, model in roster.models.items():
        member = max((m for m in roster.members.values() if m.kind == kind), key=lambda m: len(m.train))
        if len(member.train) >= 2 and _gain(model, member) >= GAIN:
            found.append(kind)
    return found


def _gain(model: SplitModel, member: Member) -> float:
    """Return how many times faster a step is in bfloat16: the ratio of medians, measured in turns."""
    trial = copy.deepcopy(model).train()
    dtype = next(model.parameters()).dtype
    rows = torch.arange(len(member.train), device=member.train.y.device)[: member.plan.batch_size]
    x, y = normalise(member.train.x[rows], dtype), member.train.y[rows]
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for step in range(STEPS + 2):
        for low, times in seconds.items():
            trial.in_bfloat16 = low
            passed = _step(trial, x, y)
            if step >= 2:  # the first steps allocate memory and choose kernels
                times.append(passed)
    return statistics.median(seconds[False]) / statistics.median(seconds[True])


def _step(model: SplitModel, x: Tensor, y: Tensor) -> float:
    start = time.perf_counter()
    loss = torch.nn.functional.cross_entropy(model(x).logits, y)
    torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    if x.device.type == "cuda":
        torch.cuda.synchronize(x.device)
    return time.perf_counter() - start
