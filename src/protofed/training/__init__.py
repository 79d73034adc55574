"""Local training: a client's visit, and the executors that schedule visits."""

from protofed.training.client import LocalPlan, Member, Schedule, check_optimizers
from protofed.training.executor import Executor, Fused, Sequential
from protofed.training.roster import Files, Memory, Roster, Store
from protofed.training.visit import Evaluated, LocalTrainer, Messages, Missing, On, Trained
from protofed.training.workers import Workers

__all__ = [
    "Evaluated",
    "Executor",
    "Files",
    "Fused",
    "LocalPlan",
    "LocalTrainer",
    "Member",
    "Memory",
    "Messages",
    "Missing",
    "On",
    "Roster",
    "Schedule",
    "Sequential",
    "Store",
    "Trained",
    "Workers",
    "check_optimizers",
]
