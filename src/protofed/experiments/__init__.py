"""Experiments: typed configuration, built-in recipes, runs and comparisons."""

from protofed.config.schema import Experiment, load_recipe, recipes, resolve
from protofed.experiments.comparing import Comparison
from protofed.experiments.running import Progress, run_experiment

__all__ = ["Comparison", "Experiment", "Progress", "load_recipe", "recipes", "resolve", "run_experiment"]
