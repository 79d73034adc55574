"""Attackers, simulated to evaluate robust rules."""

from protofed.stages.attack.attackers import Attackers
from protofed.stages.attack.attacks import AttackOptions

__all__ = ["AttackOptions", "Attackers"]
