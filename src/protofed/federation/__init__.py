"""The round loop and its checkpoints."""

from protofed.federation.checkpoint import Saving, load_checkpoint, read_rest, save_checkpoint
from protofed.federation.loop import Federation
from protofed.federation.options import EvaluationOptions, ParticipationOptions
from protofed.federation.state import ServerState
from protofed.runs import Accuracy, RoundRecord

__all__ = [
    "Accuracy",
    "EvaluationOptions",
    "Federation",
    "ParticipationOptions",
    "RoundRecord",
    "Saving",
    "ServerState",
    "load_checkpoint",
    "read_rest",
    "save_checkpoint",
]
