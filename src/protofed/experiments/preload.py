"""Imports of all workers of an experiment, done once in the fork server."""

from protofed.compute.imports import pause_collection

with pause_collection():
    import protofed.experiments.comparing
    from protofed import methods

    methods.methods()

__all__ = ["protofed"]
