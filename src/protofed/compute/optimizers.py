"""Optimisers of ``torch.optim`` without torch's compiler, which a training step does not need.

The methods ``add_param_group`` and ``step`` are decorated so that ``torch.compile`` skips them, and the decorators
import ``torch._dynamo``, which takes longer than importing torch. A ClientApp is a new process for every message.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from typing import Any

import torch
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
