"""What users call: run a recipe, or compare methods on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protofed.errors import ConfigError, unknown_name
from protofed.experiments.comparing import Comparison, Plan
from protofed.experiments.config import Tree, apply_overrides, comparison, load_recipe, resolve
from protofed.experiments.rundir import directory_for, place_for
from protofed.experiments.running import Progress, Run, run_experiment

Overrides = Mapping[str, Any]
DEFAULT_RECIPE = "quickstart"
ENGINES = ("local", "flower")


def run(
    recipe: str | Path = DEFAULT_RECIPE,
    overrides: Overrides | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    engine: str = "local",
) -> Run | Comparison:
    """Run a recipe.

    Args:
        recipe: A built-in name (``protofed list recipes``) or a TOML file.
        overrides: Dotted names to values, e.g. ``{"method.name": "fedtgp", "rounds": 40}``.
        out: Run directory; by default ``runs/RECIPE-METHOD``, numbered where taken.
        resume: Continue what is there.
        progress: Is told what happens.
        engine: ``local``, or ``flower`` for Flower's simulation engine (one method at a time).

    Returns:
        A :class:`Comparison` if the recipe lists methods to compare and neither it nor ``overrides`` names one
        method, otherwise a :class:`Run`.

    Raises:
        ProtofedError: For anything wrong with the recipe, the data or the directory.
    """
    if engine not in ENGINES:
        raise ConfigError(unknown_name("engine", engine, ENGINES))
    tree = apply_overrides(load_recipe(recipe), overrides or {})
    if "name" not in tree.get("method", {}) and comparison(tree).methods:
        if engine != "local":
            raise ConfigError(f"--engine {engine} runs one method: add method.name=…")
        return _compare(tree, out, resume, progress)
    experiment = resolve(tree)
    directory = directory_for(out, experiment, resume=resume)
    if engine == "flower":
        try:
            from protofed.flower.simulation import simulate
        except ImportError as error:
            raise ConfigError(f"--engine flower needs {error.name}: pip install 'protofed[flower]'") from None
        return simulate(experiment, directory, resume=resume, progress=progress)
    return run_experiment(experiment, directory, resume=resume, progress=progress)


def compare(
    recipe: str | Path,
    methods: Sequence[str] = (),
    seeds: Sequence[int] = (),
    overrides: Overrides | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    progress: Progress | None = None,
    jobs: int = 1,
) -> Comparison:
    """Run several methods on the same federation, with the same seeds.

    Args:
        recipe: A built-in name or a TOML file.
        methods: Names; by default those the recipe compares.
        seeds: Each method runs once per seed, which decides the split, the initial weights and the order of
            samples; by default the recipe's.
        overrides: As for :func:`run`; ``methods.NAME.OPTION`` sets an option of one method.
        out: Directory; by default ``runs/RECIPE``, numbered where taken.
        resume: Continue what is there.
        progress: Is told what happens; with several jobs, of ends only.
        jobs: Runs at a time, each in a process of its own with its share of the cores. Results equal those of
            one job up to the rounding that another number of threads brings.

    Raises:
        ProtofedError: As :func:`run`; everything is checked before the first run starts.
    """
    tree = apply_overrides(load_recipe(recipe), overrides or {})
    chosen: Tree = {"methods": list(methods)} if methods else {}
    chosen |= {"seeds": list(seeds)} if seeds else {}
    tree = apply_overrides(tree, {f"compare.{name}": value for name, value in chosen.items()})
    return _compare(tree, out, resume, progress, jobs)


def _compare(
    tree: Tree, out: str | Path | None, resume: bool, progress: Progress | None, jobs: int = 1
) -> Comparison:
    plan = Plan.of(tree)
    directory = place_for(out, plan.recipe, resume=resume)
    return plan.run(directory, resume=resume, progress=progress or Progress(), jobs=jobs)
