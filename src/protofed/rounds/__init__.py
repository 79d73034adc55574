"""The round loop and its checkpoints."""
