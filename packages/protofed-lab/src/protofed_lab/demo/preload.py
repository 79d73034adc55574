"""Imported once, in the process from which all others are forked: what every demonstration needs."""

from protofed.compute.imports import pause_collection

with pause_collection():
    import protofed_lab.demo.engine
    from protofed import methods

    methods.methods()

__all__ = ["protofed_lab"]
