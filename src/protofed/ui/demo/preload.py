"""Imported once, in the process from which all others are forked: what every demonstration needs."""

import protofed.ui.demo.engine
from protofed import methods
from protofed.training import LocalPlan

methods.methods()
LocalPlan()  # torch loads a good part of itself with its first optimiser

__all__ = ["protofed"]
