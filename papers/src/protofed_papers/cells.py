"""From a printed number to the experiment that repeats it, at the scale that a machine allows."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from protofed.config.schema import Experiment, Tree, apply_overrides, load_recipe, resolve
from protofed.errors import ConfigError, unknown_name
from protofed.experiments.sweeping import grid
from protofed_papers.papers import CODED, Figure, Paper, PaperTable

SCALES = ("full", "tenth", "smoke")
"""full: as the paper; tenth: a tenth of the images; smoke: seconds, on other data, to see that everything runs."""
IMAGES = {"cifar10": 60_000, "cifar100": 60_000, "flowers102": 8_189, "tiny_imagenet": 110_000}
"""Images of the data sets that are divided as a whole."""
CLASSES = {
    "mnist": 10,
    "cifar10": 10,
    "femnist": 62,
    "cifar100": 100,
    "flowers102": 102,
    "tiny_imagenet": 200,
    "spiral": 6,
}
DATASETS = {"tinyimagenet": "tiny-imagenet"}  #: Names of data sets in recipes, where papers write them differently
SMOKE_ROUNDS = 2
SMOKE_CLASSES = 20


def overrides_of(paper: Paper, tree: Tree, settings: Mapping[str, str], *, method: bool = True) -> Tree:
    """Return the overrides that printed settings stand for.

    Args:
        tree: Names the axes of some settings.
        method: Keep options of methods, which controls do not have.
    """
    found: Tree = {}
    for name, value in settings.items():
        if name == "dataset" or not (option := paper.options.get(name, name)):
            continue
        value = paper.translate.get(name, {}).get(value, value)
        if isinstance(value, Mapping):
            found |= value
        elif isinstance(option, Mapping):
            found |= option[value]
        elif option == "axis":
            found |= tree.get("compare", {}).get("axes", {}).get(name, {}).get(value, {})
        else:
            found |= grid([f"{option}={value}"])[1]
    return {n: v for n, v in found.items() if method or not n.startswith("method.")}


def experiment_of(
    paper: Paper,
    table: PaperTable,
    settings: Mapping[str, str],
    method: str,
    seed: int,
    scale: str,
    overrides: Mapping[str, Any],
) -> Experiment:
    """Return the experiment behind a printed number, of a printed method or a control."""
    pattern = paper.recipes.get(method) or table.recipes.get(method) or table.recipe or paper.recipes["default"]
    dataset = settings.get("dataset", "")
    name = pattern.format(dataset=DATASETS.get(dataset, dataset))
    if method.endswith(CODED):
        name += f"-as{CODED}"
    tree = _recipe(name)
    chosen = paper.methods.get(method, method.removesuffix(CODED))
    given = overrides_of(paper, tree, settings, method=not is_added(table, method))
    given |= paper.adjust.get(method, {})
    return scaled(apply_overrides(tree, given), chosen, seed, scale, overrides)


@cache
def _recipe(name: str) -> Tree:
    """Return a built-in recipe, which must not be changed."""
    return load_recipe(name)


def is_added(table: PaperTable, method: str) -> bool:
    """Return whether a row is no printed one: of a method that sends nothing, or of a variant."""
    added = method in (*CONTROLS, *table.added) or method.endswith(CODED)
    return added and all(printed.method != method for printed in table.printed)


CONTROLS = ("local", "fixed_etf")


def scaled(tree: Tree, method: str, seed: int, scale: str, overrides: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a recipe at a scale."""
    if scale not in SCALES:
        raise ConfigError(unknown_name("scale", scale, SCALES))
    given = {} if scale == "full" else _tenth(tree) if scale == "tenth" else _smoke(tree)
    return resolve(apply_overrides(tree, {**given, **overrides}), method=method, seed=seed)


def divided(experiment: Experiment) -> int:
    """Count the images that are divided among the clients, at the paper's scale; 0 where not divided as a whole."""
    return 0 if experiment.partition == "nway_kshot" else IMAGES.get(experiment.data.source, 0)


def _tenth(tree: Tree) -> Tree:
    """Return a tenth of the images: of the shots per class, or else of the whole data set."""
    partition = tree.get("partition", {})
    if "k" in partition:
        spread = {"partition.k_std": round(partition.get("k_std", 2) / 10)} if "paper" not in partition else {}
        return {"partition.k": max(1, round(partition["k"] / 10)), **spread}
    images = IMAGES.get(tree["data"]["source"])
    if images is None:
        return {}
    given: Tree = {"partition.share": 0.1} if "paper" in partition else {"data.samples": images // 10}
    places = {"methods.tinyproto": tree.get("methods", {}).get("tinyproto", {})}
    places |= {f"variants.{name}.method": own.get("method", {}) for name, own in tree.get("variants", {}).items()}
    for place, options in places.items():
        if mu := options.get("mu"):  # of TinyProto: μ·n_ij, the length of what is sent, stays the paper's
            given[f"{place}.mu"] = round(10 * mu, 9)
    return given


def _smoke(tree: Tree) -> Tree:
    """Return a federation of seconds: points in the plane instead of images, a perceptron, few classes."""
    partition = tree.get("partition", {})
    K = min(CLASSES[tree["data"]["source"]], SMOKE_CLASSES)
    given: Tree = {
        "data.source": "spiral",
        "data.options": {"arms": K, "points": 300 // K},
        "data.clients": max(2, tree["data"].get("clients", 20) // 4),
        "model.name": "mlp",
        "model.options": {"hidden": [16]},
        "rounds": SMOKE_ROUNDS,
        "execution.threads": 1,
        "execution.executor": "sequential",
        "checkpoint.every": 0,
        "methods.gfpl": {**tree.get("methods", {}).get("gfpl", {}), "start": 1, "interval": 1},
        "methods.protonorm": {**tree.get("methods", {}).get("protonorm", {}), "max_iterations": 20},
        "methods.fedtgp": {**tree.get("methods", {}).get("fedtgp", {}), "server_epochs": 2},
        "methods.fedpa": {**tree.get("methods", {}).get("fedpa", {}), "generator_steps": 2},
    }
    encoded = [name for name, own in tree.get("variants", {}).items() if "encoder" in own]
    given |= {f"variants.{name}.encoder.dim": 16 for name in encoded}
    if "k" in partition:
        given |= {"partition.name": "nway_kshot", "transforms": {}}
        shots = partition.get("k", 100)
        spread = min(2, partition.get("k_std", 2))
        given |= {"partition.k": max(3, shots // 20), "partition.k_std": spread, "partition.test_shots": 2}
    return given


def figure_cells(
    paper: Paper, figure: Figure, seed: int, scale: str, overrides: Mapping[str, Any]
) -> list[tuple[Tree, Experiment]]:
    """Return the runs that a figure shows, each with its ``method`` and the values that vary, as printed."""
    if not figure.recipe:
        return []
    tree = apply_overrides(_recipe(figure.recipe), {})
    for name in figure.unset:
        *path, last = name.split(".")
        node: Any = tree
        for step in path:
            node = node.get(step, {})
        node.pop(last, None)
    parts: list[Mapping[str, Any]] = [{"methods": figure.methods, "vary": figure.vary, "set": figure.set}]
    if figure.against:
        against = figure.against
        parts.append({"methods": [against["method"]], "vary": against["vary"], "set": against["set"]})
    return [
        (
            {"method": method, **values},
            scaled(
                apply_overrides(tree, {**paper.adjust.get(method, {}), **part["set"], **values}),
                method,
                seed,
                scale,
                overrides,
            ),
        )
        for part in parts
        for values in combinations(part["vary"])
        for method in part["methods"]
    ]


def figure_runs(
    paper: Paper, figure: Figure, seed: int, scale: str, overrides: Mapping[str, Any]
) -> list[Experiment]:
    """Return the different runs that a figure shows."""
    return list({e.key: e for _, e in figure_cells(paper, figure, seed, scale, overrides)}.values())


def combinations(vary: Mapping[str, Sequence[Any]]) -> list[Tree]:
    """Return every combination of the values of options."""
    return [dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())]
