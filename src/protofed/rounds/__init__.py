"""The round loop and its checkpoints; the names here are for those who write a stage."""

from protofed.rounds.stage import Opened, Stage

__all__ = ["Opened", "Stage"]
