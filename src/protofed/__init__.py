"""protofed: prototype-based federated learning for clients with different models and different data.

import protofed
result = protofed.run("mnist-dirichlet", {"method.name": "fedproto"})
result.outcome
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if os.name != "posix":
    raise ImportError("protofed runs on Linux and macOS: on Windows, install it inside WSL")

__version__ = "0.3.0.dev0"

_EXPORTS = {
    "run": "protofed.api",
    "compare": "protofed.api",
    "federation": "protofed.sites.frames",
    "figure": "protofed.api",
    "try_out": "protofed.sites.trying",
    "tune": "protofed.api",
    "load_comparison": "protofed.api",
    "load_run": "protofed.api",
    "TrainedRun": "protofed.trained.run",
    "Comparison": "protofed.experiments",
    "Progress": "protofed.experiments",
    "ProtofedClassifier": "protofed.trained.estimator",
    "ProtofedError": "protofed.errors",
}

__all__ = [
    "Comparison",
    "Progress",
    "ProtofedClassifier",
    "ProtofedError",
    "TrainedRun",
    "__version__",
    "compare",
    "federation",
    "figure",
    "load_comparison",
    "load_run",
    "run",
    "try_out",
    "tune",
]

if TYPE_CHECKING:
    from protofed.api import compare, figure, load_comparison, load_run, run, tune
    from protofed.errors import ProtofedError
    from protofed.experiments import Comparison, Progress
    from protofed.sites.frames import federation
    from protofed.sites.trying import try_out
    from protofed.trained.estimator import ProtofedClassifier
    from protofed.trained.run import TrainedRun


def __getattr__(name: str) -> Any:
    """Import exported names on first use, so that ``import protofed`` and the command line start quickly."""
    if name == "sweep":
        raise AttributeError('protofed.sweep is gone: protofed.compare(…, vary=["method.s=50,150"])')
    if name not in _EXPORTS:
        raise AttributeError(f"module 'protofed' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_EXPORTS[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, also before their first use."""
    return sorted(__all__)
