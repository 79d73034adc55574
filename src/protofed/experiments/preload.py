"""Imported once, in the process from which all others are forked: what every worker of an experiment needs."""

from protofed.compute.imports import pause_collection

with pause_collection():
    import protofed.experiments.comparing
    from protofed import methods

    methods.methods()

__all__ = ["protofed"]
