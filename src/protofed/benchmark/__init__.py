"""Benchmarks of this package against alternatives, always reported as ratios: ``protofed bench``.

Each benchmark has its own module: :mod:`overhead` (against a bare PyTorch loop, and of worker processes),
:mod:`peer` (against the public library HtFLlib), :mod:`scaling` (with the number of clients) and :mod:`until` (what
it takes until an accuracy is reached).
"""

from protofed.benchmark.report import Report
from protofed.benchmark.request import Request, Result
from protofed.benchmark.running import BENCHMARKS, measure

__all__ = ["BENCHMARKS", "Report", "Request", "Result", "measure"]
