"""How local work is done: a client's visit, and the executors that arrange visits."""

from protofed.training.client import Client, LocalPlan, Member, Parked
from protofed.training.executor import Executor, Messages, Sequential
from protofed.training.fused import Fused
from protofed.training.roster import Files, Memory, Roster, Store
from protofed.training.samples import ClientData, FederatedData, Samples
from protofed.training.visit import Evaluated, Missing, Trained, Visitor
from protofed.training.workers import Workers

__all__ = [
    "Client",
    "ClientData",
    "Evaluated",
    "Executor",
    "FederatedData",
    "Files",
    "Fused",
    "LocalPlan",
    "Member",
    "Memory",
    "Messages",
    "Missing",
    "Parked",
    "Roster",
    "Samples",
    "Sequential",
    "Store",
    "Trained",
    "Visitor",
    "Workers",
]
