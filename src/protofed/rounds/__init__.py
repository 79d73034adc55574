"""The round loop and its checkpoints."""

from protofed.rounds.checkpoint import (
    Checkpoint,
    Saving,
    load_checkpoint,
    newest_checkpoint,
    read_rest,
    save_checkpoint,
)
from protofed.rounds.evaluation import Evaluation
from protofed.rounds.loop import Federation
from protofed.rounds.options import EvaluationOptions, ParticipationOptions
from protofed.rounds.participation import Participation
from protofed.rounds.stage import Opened, Receiving, Stage
from protofed.rounds.state import ServerState, StoredState
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
    "StoredState",
    "load_checkpoint",
    "newest_checkpoint",
    "read_rest",
    "save_checkpoint",
]
