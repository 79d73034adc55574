"""Benchmarks of protofed against alternatives, always reported as ratios: ``python -m benchmarks``.

Each benchmark has its own module: :mod:`overhead` (against a bare PyTorch loop, and of worker processes),
:mod:`peer` (against the public library HtFLlib), :mod:`scaling` (with the number of clients), :mod:`until` (what it
takes until an accuracy is reached) and :mod:`felt` (what people wait for). They are not part of the package.
"""
