"""Robust aggregation, a stage between validated uploads and a method, and the attacks used to evaluate it."""

from protofed.robust.attackers import Attackers
from protofed.robust.attacks import AttackOptions
from protofed.robust.guard import Guard
from protofed.robust.options import RobustOptions
from protofed.runs import Findings

__all__ = ["AttackOptions", "Attackers", "Findings", "Guard", "RobustOptions"]
