"""Experiments: typed configuration, built-in recipes, runs and comparisons."""

from protofed.config.schema import Experiment, load_recipe, recipes, resolve
from protofed.experiments.comparing import Comparison
from protofed.experiments.running import Progress, Run, load_run, run_experiment

__all__ = [
    "Comparison",
    "Experiment",
    "Progress",
    "Run",
    "load_recipe",
    "load_run",
    "recipes",
    "resolve",
    "run_experiment",
]
