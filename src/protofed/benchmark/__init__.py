"""How fast this package is beside other ways to do the same, always as ratios: ``protofed bench``.

Each benchmark has a file of its own: :mod:`overhead` (a bare PyTorch loop, and processes), :mod:`peer` (the public
library HtFLlib) and :mod:`scaling` (more clients).
"""

from protofed.benchmark.report import Report
from protofed.benchmark.request import Request, Result
from protofed.benchmark.running import BENCHMARKS, measure

__all__ = ["BENCHMARKS", "Report", "Request", "Result", "measure"]
