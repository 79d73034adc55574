"""Robust aggregation, a stage between validated uploads and a method."""

from protofed.runs.findings import Findings
from protofed.stages.robust.guard import Guard
from protofed.stages.robust.options import RobustOptions

__all__ = ["Findings", "Guard", "RobustOptions"]
