"""How local work is done: a client's visit, and the executors that arrange visits."""

from protofed.training.client import Client, LocalPlan, Member, Parked
from protofed.training.executor import Executor, Fused, Sequential
from protofed.training.roster import Files, Memory, Roster, Store
from protofed.training.visit import Evaluated, LocalTrainer, Messages, Missing, Trained
from protofed.training.workers import Workers

__all__ = [
    "Client",
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
    "Parked",
    "Roster",
    "Sequential",
    "Store",
    "Trained",
    "Workers",
]
