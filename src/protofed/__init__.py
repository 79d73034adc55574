"""protofed: prototype-based federated learning for clients with different models and different data.

import protofed
result = protofed.run("mnist-dirichlet", {"method.name": "fedproto"})
result.summary
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protofed import numerics

numerics.prepare()  # before anything here, or the user's own code after this import, makes torch compute

__version__ = "0.2.0"

_EXPORTS = {
    "run": "protofed.experiments",
    "compare": "protofed.experiments",
    "Run": "protofed.experiments",
    "Comparison": "protofed.experiments",
    "Progress": "protofed.experiments",
    "ProtofedError": "protofed.errors",
}

__all__ = ["Comparison", "Progress", "ProtofedError", "Run", "__version__", "compare", "run"]

if TYPE_CHECKING:
    from protofed.errors import ProtofedError
    from protofed.experiments import Comparison, Progress, Run, compare, run


def __getattr__(name: str) -> Any:
    """Import on first use, so that ``import protofed`` and the command line start fast."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'protofed' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value
