"""Conditions of a process's computations: repeatable numerics, seeds, optimisers, imports."""
