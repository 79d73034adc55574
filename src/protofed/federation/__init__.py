"""The round loop, its records and its checkpoints."""

from protofed.federation.checkpoint import load_checkpoint, save_checkpoint
from protofed.federation.loop import EvaluationOptions, Federation, ParticipationOptions
from protofed.federation.records import Accuracy, RoundRecord

__all__ = [
    "Accuracy",
    "EvaluationOptions",
    "Federation",
    "ParticipationOptions",
    "RoundRecord",
    "load_checkpoint",
    "save_checkpoint",
]
