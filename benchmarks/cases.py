"""The experiments used by the benchmarks, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from protofed.config.schema import Experiment, apply_overrides, load_recipe, resolve
from protofed.errors import ConfigError, unknown_name

OWN = {
    "rounds": "--rounds",
    "execution.executor": "",
    "execution.threads": "--threads",
    "execution.workers": "--processes",
    "evaluation.every": "",
    "participation.fraction": "",
}
"""Options that a benchmark sets itself → the command-line option to use instead, if any."""


@dataclass(frozen=True)
class Case:
    """One experiment to measure: a built-in recipe, and options by dotted name."""

    recipe: str
    overrides: Mapping[str, Any]


SCATTERING = {"encoder.name": "scattering", "encoder.dim": 64}
RANDOM = {"encoder.name": "random", "encoder.options.filters": 50, "encoder.dim": 64}
CASES = {
    "fedlda-scattering": Case("fed-mnist7k", {"method.name": "fedlda", **SCATTERING}),
    "fedlda-random": Case("fed-mnist7k", {"method.name": "fedlda", **RANDOM}),
    "fed3r-random": Case("fed-mnist7k", {"method.name": "fed3r", **RANDOM}),
    "fedncm-random": Case("fed-mnist7k", {"method.name": "fedncm", **RANDOM}),
    "fedproto-small4": Case("quickstart", {"method.name": "fedproto"}),
    "fedproto-light4": Case("cifar10-dirichlet", {"method.name": "fedproto", "data.samples": 6000}),
    "fedproto-cnn2": Case("fed-mnist7k", {"method.name": "fedproto"}),
    "fedtgp-cnn2": Case("fed-mnist7k", {"method.name": "fedtgp"}),
    "lg_fedavg-cnn2": Case("fed-mnist7k", {"method.name": "lg_fedavg"}),
    "fml-cnn2": Case("fed-mnist7k", {"method.name": "fml"}),
    "fedmrl-cnn2": Case("fed-mnist7k", {"method.name": "fedmrl"}),
    "fedl2g-cnn2": Case("fed-mnist7k", {"method.name": "fedl2g", "training.batch_size": 16}),
}


def case_experiment(
    name: str, overrides: Mapping[str, Any], *, rounds: int, also: Mapping[str, Any] | None = None
) -> Experiment:
    """Return the experiment of a case, in which all clients train and are evaluated in every round.

    Args:
        also: The benchmark's own options, which the user's override.
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
    """Raise ConfigError for overrides in ``own``, options that the benchmark sets itself."""
    for name in overrides:
        if name in own:
            hint = f"use {own[name]}" if own[name] else "leave it out"
            raise ConfigError(f"{name}={overrides[name]}: bench sets this itself: {hint}")
