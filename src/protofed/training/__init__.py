"""How local work is done: a client's visit, and the executors that arrange visits."""

from protofed.training.client import Client, LocalPlan
from protofed.training.executor import Executor, Messages, Sequential
from protofed.training.samples import ClientData, FederatedData, Samples
from protofed.training.visit import Evaluated, Trained, Visitor

__all__ = [
    "Client",
    "ClientData",
    "Evaluated",
    "Executor",
    "FederatedData",
    "LocalPlan",
    "Messages",
    "Samples",
    "Sequential",
    "Trained",
    "Visitor",
]
