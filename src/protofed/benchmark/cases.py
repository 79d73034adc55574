"""The experiments that are measured, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protofed.errors import ConfigError, unknown_name
from protofed.experiments.config import Experiment, apply_overrides, load_recipe, resolve

OWN = {
    "rounds": "--rounds",
    "execution.executor": "",
    "execution.threads": "--threads",
    "execution.workers": "--processes",
    "evaluation.every": "",
    "participation.fraction": "",
}
"""What a benchmark decides itself, and the option of the command that sets it, if any."""


@dataclass(frozen=True)
class Case:
    """One experiment to measure.

    Attributes:
        recipe: A built-in recipe.
        overrides: Options by dotted name.
    """

    recipe: str
    overrides: Mapping[str, Any]


CASES = {
    "fedproto-small4": Case("quickstart", {"method.name": "fedproto"}),
    "fedproto-light4": Case("cifar10-dirichlet", {"method.name": "fedproto", "data.samples": 6000}),
    "fedproto-cnn2": Case("fed-mnist7k", {"method.name": "fedproto"}),
    "fedtgp-cnn2": Case("fed-mnist7k", {"method.name": "fedtgp"}),
}


def case_experiment(
    name: str, overrides: Mapping[str, Any], *, rounds: int, also: Mapping[str, Any] | None = None
) -> Experiment:
    """Return the experiment of a case: all clients train and are scored in each of ``rounds`` rounds.

    Args:
        name: In :data:`CASES`.
        overrides: Options by dotted name, as the user gave them.
        rounds: How many.
        also: Options of the benchmark's own, weaker than the user's.

    Raises:
        ConfigError: For an unknown case, an unsuitable option, or one that the benchmark decides itself.
    """
    if name not in CASES:
        raise ConfigError(unknown_name("case", name, CASES))
    refuse(overrides, OWN)
    case = CASES[name]
    fixed = {
        "rounds": rounds,
        "execution.executor": "sequential",
        "execution.threads": 0,
        "evaluation.every": 1,
        "participation.fraction": 1.0,
    }
    return resolve(
        apply_overrides(load_recipe(case.recipe), {**case.overrides, **(also or {}), **overrides, **fixed})
    )


def refuse(overrides: Mapping[str, Any], own: Mapping[str, str]) -> None:
    """Raise ConfigError if ``overrides`` has a name that the benchmark decides itself."""
    for name in overrides:
        if name in own:
            hint = f"use {own[name]}" if own[name] else "leave it out"
            raise ConfigError(f"{name}={overrides[name]}: bench decides this itself, {hint}")
