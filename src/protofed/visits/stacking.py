"""Tensors of several clients as one: stacked weights, padded batches, BatchNorm that ignores padding."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C import _functorch as functorch
from torch.overrides import TorchFunctionMode

from protofed.methods.contract import SplitModel
from protofed.samples import Samples

Tensors = dict[str, Tensor]
ROWS = "rows"


class StackingError(RuntimeError):
    """The reason why clients of one architecture cannot be stacked."""


def stack(parts: Sequence[Mapping[str, Tensor]]) -> Tensors:
    """Return ``(C, …)`` tensors from C dictionaries of the same names and shapes."""
    first = parts[0]
    for part in parts:
        if part.keys() != first.keys() or any(part[n].shape != first[n].shape for n in first):
            raise StackingError("its clients hold tensors of different shapes")
    return {n: torch.stack([part[n] for part in parts]) for n in first}


def unstack(tensors: Mapping[str, Tensor], index: int) -> Tensors:
    """Return the tensors of one client of a stack."""
    return {name: tensor[index] for name, tensor in tensors.items()}


def first(tensors: Mapping[str, Tensor], clients: int) -> Tensors:
    """Return views of the tensors of the first clients of a stack."""
    return {name: tensor[:clients] for name, tensor in tensors.items()}


class PooledSamples:
    """Samples of several clients, concatenated; those that several clients share are held once."""

    def __init__(self, parts: Sequence[Samples]) -> None:
        shapes = {(p.x.dtype, p.x.shape[1:]) for p in parts if len(p)}
        if len(shapes) > 1:
            raise StackingError("its clients hold samples of different types")
        distinct = {id(p): p for p in parts}
        held = [p.x for p in distinct.values() if len(p)] or [parts[0].x]
        self.x = torch.cat(held) if len(held) > 1 else held[0]
        self.y = torch.cat([p.y for p in distinct.values()])
        self.lengths = [len(p) for p in parts]
        ends = accumulate(map(len, distinct.values()))
        starts = {key: end - len(p) for (key, p), end in zip(distinct.items(), ends, strict=True)}
        self.starts = [starts[id(p)] for p in parts]

    def places(self, steps: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Tensor, list[list[int]]]:
        """Return the positions of each client's rows of each step.

        Returns:
            ``(C, T, B)`` int64 positions, ``(C, T, B)`` weights (0 for padding), and the number of rows per client
            and step.
        """
        T = max((len(s) for s in steps), default=0)
        B = max((len(rows) for s in steps for rows in s), default=0)
        places = torch.zeros(len(steps), T, B, dtype=torch.int64)
        weights = torch.zeros(len(steps), T, B)
        for c, own in enumerate(steps):
            for t, rows in enumerate(own):
                places[c, t, : len(rows)] = rows + self.starts[c]
                weights[c, t, : len(rows)] = 1
        device = self.y.device
        return places.to(device), weights.to(device), [[len(rows) for rows in own] for own in steps]


class PaddedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm whose statistics ignore rows of weight 0.

    The executor sets the buffer ``rows`` ``(B,)`` for every step; it is empty if nothing is padded.
    """

    rows: Tensor

    def forward(self, given: Tensor) -> Tensor:
        """Normalise ``(B, C, …)``."""
        if not self.training or self.rows.numel() == 0:
            return super().forward(given)
        over = [0, *range(2, given.dim())]
        shape = [1, -1, *[1] * (given.dim() - 2)]
        weight = self.rows.to(given.dtype).view(-1, *[1] * (given.dim() - 1))
        number = self.rows.sum().to(given.dtype) * (given[0, 0].numel())
        mean = (given * weight).sum(over) / number
        centred = given - mean.view(shape)
        variance = (centred.square() * weight).sum(over) / number
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            self._track(mean.detach(), (variance * number / (number - 1)).detach())
        out = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out

    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            share = 1 / self.num_batches_tracked.to(mean.dtype) if self.momentum is None else self.momentum
            self.running_mean.add_((mean - self.running_mean) * share)
            self.running_var.add_((variance - self.running_var) * share)

    def _check_input_dim(self, given: Tensor) -> None:
        """Accept any number of dimensions: the replaced layer has checked its input."""


def skeleton(model: SplitModel) -> SplitModel:
    """Return a copy of ``model`` for ``torch.func.functional_call`` whose BatchNorm layers ignore padding."""
    bare = copy.deepcopy(model)
    for module in bare.modules():
        if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            module.__class__ = PaddedBatchNorm
            module.register_buffer(ROWS, torch.zeros(0), persistent=False)
    return bare


def list_padded(model: nn.Module) -> list[str]:
    """Return the names of the buffers that mark padding."""
    return [f"{name}.{ROWS}" for name, module in model.named_modules() if isinstance(module, PaddedBatchNorm)]


STACKED = ("input", "weight", "bias")
SIDE_BY_SIDE = {
    F.conv2d: (*STACKED, "stride", "padding", "dilation", "groups"),
    F.max_pool2d: ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"),
}
"""Operations on images with a batching rule of ours, and the names of their arguments in order."""


class WithBatchingRules(TorchFunctionMode):
    """Replaces operations that ``vmap`` runs client by client, or slowly on a CPU, with equivalent ones."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Pool whole images as a mean, compute :data:`SIDE_BY_SIDE` by our rule, and leave the rest alone."""
        kwargs = kwargs or {}
        if func is F.adaptive_avg_pool2d and _ones(args[1:] or tuple(kwargs.values())):
            return args[0].mean((-2, -1), keepdim=True)
        if func in SIDE_BY_SIDE and args and args[0].dim() == 4 and args[0].device.type == "cpu":
            given = dict(zip(SIDE_BY_SIDE[func], args, strict=False)) | kwargs
            tensors = [t for t in map(given.get, STACKED) if t is not None]
            level = functorch.maybe_get_level(tensors[0])  # of nested vmaps
            if all(functorch.is_batchedtensor(t) and functorch.maybe_get_level(t) == level for t in tensors):
                return _side_by_side(func, given, level)
        return func(*args, **kwargs)


def _side_by_side(func: Any, given: dict[str, Any], level: int) -> Tensor:
    """Compute an operation on images with the clients' channels side by side, ``(B, C·c, H, W)``, channels last.

    torch's own rules move the clients between operations, which copies whole layers, and pool in the layout that
    has the slowest kernel (``papers/studies/speed.md``). ``torch.autograd.Function.vmap`` would do the same, but
    costs 0.4 ms a call.
    """
    x = _unwrap(given["input"], 1)
    clients = x.shape[1]
    joined = {n: _unwrap(given[n], 0).flatten(0, 1) for n in STACKED[1:] if given.get(n) is not None}
    if joined:
        joined["groups"] = clients * given.get("groups", 1)
    joined["input"] = x.flatten(1, 2).contiguous(memory_format=torch.channels_last)
    y = func(**given | joined).unflatten(1, (clients, -1))
    result: Tensor = functorch._add_batch_dim(y, 1, level)
    return result


def _unwrap(tensor: Tensor, to: int) -> Tensor:
    whole: Tensor = functorch.get_unwrapped(tensor)
    return whole.movedim(functorch.maybe_get_bdim(tensor), to)


def _ones(output_size: tuple[Any, ...]) -> bool:
    return len(output_size) == 1 and output_size[0] in (1, (1, 1), [1, 1])
