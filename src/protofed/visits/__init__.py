"""Local training: a client's visit, and the executors that schedule visits."""

from protofed.visits.client import LocalPlan, Member, Schedule, check_optimizers
from protofed.visits.executor import Executor, Fused, Sequential
from protofed.visits.roster import Files, Memory, Roster, Store
from protofed.visits.visit import Evaluated, LocalTrainer, Messages, Missing, On, Trained
from protofed.visits.workers import Workers

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
