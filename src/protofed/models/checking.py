"""Checks that report a wrong option or sample shape as a one-line error."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from protofed.errors import ModelError


def show(shape: tuple[int, ...] | torch.Size) -> str:
    """Return a shape formatted like ``1×28×28``."""
    return "×".join(str(n) for n in shape) or "()"


def check_shape(input_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of one sample as a tuple of positive integers."""
    shape = tuple(input_shape)
    if not shape or not all(isinstance(n, Integral) and n > 0 for n in shape):
        raise ModelError(f"input_shape {shape} must be positive integers: (C, H, W) or (F,)")
    return tuple(int(n) for n in shape)


def probe(module: nn.Module, input_shape: tuple[int, ...], what: str, hint: str = "") -> Any:
    """Return the output of a module for two zero samples, in eval mode and without gradients.

    The mode of every submodule is restored.
    """
    first = next((p for p in module.parameters() if p.is_floating_point()), torch.zeros(()))
    x = torch.zeros(2, *input_shape, dtype=first.dtype, device=first.device)
    modes = [(m, m.training) for m in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            return module(x)
    except Exception as error:  # a user's forward may raise anything
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        advice = f"; {hint}" if hint else ""
        message = f"{what} cannot take samples of shape {show(input_shape)}: {reason.rstrip('.')}{advice}"
        raise ModelError(message) from error
    finally:
        for m, training in modes:
            m.training = training


def flat_width(module: nn.Module, input_shape: tuple[int, ...], what: str) -> int:
    """Return the width of a module's flat output ``(B, width)``."""
    out: Tensor = probe(module, input_shape, what, "use larger images or another architecture")
    if out.dim() != 2:
        raise ModelError(f"{what}: the backbone returns {show(out.shape)} for two samples, not (2, width): flatten")
    return out.shape[1]
