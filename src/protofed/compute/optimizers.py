"""Optimisers of ``torch.optim``: without torch's compiler, which a training step does not need, and their state.

The methods ``add_param_group`` and ``step`` are decorated so that ``torch.compile`` skips them, and the decorators
import ``torch._dynamo``, which takes longer than importing torch. A ClientApp is a new process for every message.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


@lru_cache(maxsize=64)
def eager(kind: type[Optimizer]) -> type[Any]:
    """Return a subclass of an optimiser with the same steps, bit for bit, that does not import the compiler."""
    undecorated = inspect.unwrap(kind.step)

    def step(self: Optimizer, closure: Any = None) -> Any:
        with torch.set_grad_enabled(self.defaults.get("differentiable", False)):
            return undecorated(self, closure)

    add = inspect.unwrap(kind.add_param_group)
    return type(kind.__name__, (kind,), {"step": step, "add_param_group": add, "__doc__": kind.__doc__})


def state_of(optimizer: Optimizer, parameters: Mapping[str, Tensor], scope: str) -> dict[str, Tensor]:
    """Return the state of an optimiser as flat tensors ``SCOPE/PARAMETER/NAME``."""
    return {
        f"{scope}/{name}/{key}": value.detach()
        for name, parameter in parameters.items()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def restore_state(
    optimizer: Optimizer, parameters: Mapping[str, Tensor], kept: Mapping[str, Tensor], scope: str
) -> None:
    """Let a new optimiser go on from copies of the state that :func:`kept_state` returned.

    Args:
        kept: May include that of other scopes.
    """
    for place, tensor in kept.items():
        owner, _, key = place.removeprefix(f"{scope}/").rpartition("/")
        if place.startswith(f"{scope}/") and owner in parameters:
            parameter = parameters[owner]
            if tensor.shape == parameter.shape and key != "step":
                value = torch.empty_like(parameter, dtype=tensor.dtype, requires_grad=False).copy_(tensor)
            else:
                # As torch's own load_state_dict: the optimisers count their steps on the CPU.
                on_host = key == "step" and not any(optimizer.defaults.get(o) for o in ("capturable", "fused"))
                value = tensor.to("cpu" if on_host else parameter.device, copy=True)
            optimizer.state[parameter][key] = value


def check_kept(kept: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> None:
    """Check that kept optimiser state, named ``PHASE/UPDATE/LOSS/PARAMETER/NAME``, belongs to a model."""
    for place, tensor in kept.items():
        scope = place.split("/")
        parameter = parameters[scope[3] if len(scope) == 5 else place]
        sides = zip(tensor.shape, parameter.shape, strict=False)
        if tensor.dim() not in (0, parameter.dim()) or any(a not in (1, b) for a, b in sides):
            raise RuntimeError(f"state of the optimiser {place} has the shape {tuple(tensor.shape)}")
