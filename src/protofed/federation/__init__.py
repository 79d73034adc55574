"""The round loop and its checkpoints."""

from protofed.federation.checkpoint import (
    Checkpoint,
    Saving,
    load_checkpoint,
    newest_checkpoint,
    read_rest,
    save_checkpoint,
)
from protofed.federation.evaluation import Evaluation
from protofed.federation.loop import Federation
from protofed.federation.options import EvaluationOptions, ParticipationOptions
from protofed.federation.participation import Participation
from protofed.federation.stage import Opened, Receiving, Stage
from protofed.federation.state import ServerState, read_forgotten
from protofed.runs import Accuracy, RoundRecord

__all__ = [
    "Accuracy",
    "Checkpoint",
    "Evaluation",
    "EvaluationOptions",
    "Federation",
    "Opened",
    "Participation",
    "ParticipationOptions",
    "Receiving",
    "RoundRecord",
    "Saving",
    "ServerState",
    "Stage",
    "load_checkpoint",
    "newest_checkpoint",
    "read_forgotten",
    "read_rest",
    "save_checkpoint",
]
