"""What decides how a process computes: repeatable numerics, seeds, optimizers, imports."""
