"""Robust aggregation: a stage between validated uploads and a method, and the attacks it is measured against."""

from protofed.robust.attackers import Attackers
from protofed.robust.attacks import AttackOptions
from protofed.robust.findings import Findings
from protofed.robust.guard import Guard
from protofed.robust.options import RobustOptions

__all__ = ["AttackOptions", "Attackers", "Findings", "Guard", "RobustOptions"]
