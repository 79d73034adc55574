"""Settings of numerical libraries, made before anything is computed, so that a run can be repeated bit for bit.

By default, some of MKL's kernels (those for AMD processors and for processors without AVX2) sum products in an
order that depends on the memory addresses of the operands, which differ between processes and between a run and its
repetition. MKL reads its variable at its first call, which may be as late as the first matrix product.
"""

from __future__ import annotations

import os
import warnings
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

SETTINGS = {"MKL_CBWR": "AUTO"}
"""Environment variables: MKL's conditional numerical reproducibility with the fastest kernels of this processor."""

WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""Environment variables that determine how OpenMP's threads wait; not what they compute."""

CHOICES = (*SETTINGS, "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY")
"""Environment variables that select kernels and thereby affect the last bits of a result."""


def prepare() -> None:
    """Set the variables that the user has not set, for this process and its children, before a command or a run."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def waiting() -> str:
    """Return the environment's policy for waiting threads; "" for the runtime's default."""
    return " ".join(f"{name}={os.environ[name]}" for name in WAITING if name in os.environ)


def facts() -> dict[str, str]:
    """Return the facts that affect the last bits of a result, besides processor, versions and number of threads."""
    import torch

    chosen = {name: os.environ[name] for name in CHOICES if name in os.environ}
    return {"instructions": torch.backends.cpu.get_cpu_capability(), **chosen}


@cache
def depends_on_addresses() -> bool:
    """Return whether matrix products in this process depend on the memory addresses of their operands.

    The first product decides it for good.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    for rows, inner, columns in ((1, 6, 4), (1, 8, 16), (2, 64, 4), (3, 33, 8)):
        sizes = ((rows, inner), (columns, inner), (columns,))
        operands = [torch.randn(size, generator=generator) for size in sizes]
        products = [
            torch.nn.functional.linear(*(_copy_unaligned(x, i * offset % 16) for i, x in enumerate(operands, 1)))
            for offset in range(16)
        ]
        if not all(torch.equal(product, products[0]) for product in products):
            return True
    return False


def warn_if_unrepeatable() -> None:
    """Warn if a repeated run would differ in its last bits, by the user's choice or because MKL was used before."""
    if depends_on_addresses():
        warnings.warn(
            "matrix products depend on the memory addresses of their operands, so a repeated or resumed run, or "
            "one with workers, agrees only up to rounding: start with "
            f"MKL_CBWR={SETTINGS['MKL_CBWR']} in the environment (it is {os.environ.get('MKL_CBWR') or 'empty'})",
            RuntimeWarning,
            stacklevel=2,
        )


def _copy_unaligned(x: Tensor, offset: int) -> Tensor:
    """Return a copy of ``x`` that begins ``offset`` elements after a multiple of 64 bytes."""
    import torch

    room = torch.empty(x.numel() + 32, dtype=x.dtype)
    start = offset + (-room.data_ptr() // x.element_size()) % (64 // x.element_size())
    return room[start : start + x.numel()].view(x.shape).copy_(x)
