"""Imported once, in the process from which all others are forked: what every demonstration needs."""

import protofed.ui.demo.engine
from protofed import methods

methods.methods()

__all__ = ["protofed"]
