"""Fair comparisons: every arm tuned on validation samples from one grid: ``papers/tools/fair.py STUDY DIRECTORY``.

The rule was written before the first run. All heads are trained by balanced softmax. Learning rate, λ and γ of
every arm that has them are chosen from GRID by the mean accuracy of ``head`` on validation samples in the last
round, over the seeds TUNING; ties go to the first. Test samples decide nothing. The chosen values are then run with
the other SEEDS. Runs that are there are not repeated; ``--save`` writes studies/STUDY.csv, and what was tried to
studies/tuning/tried.csv.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from does_it_help import OWN_RULE, STUDY, TUNED, Arm, arms_of, save
from protofed.config.schema import apply_overrides, load_recipe
from protofed.runs.loading import load_run
from rows import read_rows, write_rows

GRID: dict[str, tuple[float, ...]] = {
    "training.lr": (0.001, 0.003),
    "method.lambda": (1.0, 0.1, 10.0),
    "method.gamma": (10.0, 100.0),
}
LR, LAMBDA, GAMMA = GRID
TUNING = (0, 1, 2)
SEEDS = (0, 1, 2, 3, 4)
BALANCED = {"softmax": "balanced"}
ARMS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "local-balanced": ({"name": "local", **BALANCED}, (LR,)),
    "fixed_etf-balanced": ({"name": "fixed_etf", **BALANCED}, (LR, LAMBDA, GAMMA)),
    "fedproto-balanced": ({"name": "fedproto", **BALANCED}, (LR, LAMBDA)),
    "fedtgp-balanced": ({"name": "fedtgp", **BALANCED}, (LR, LAMBDA)),
    "tinyproto-balanced": ({"name": "tinyproto", "base_options": BALANCED}, (LR, LAMBDA)),
    "protonorm-balanced": ({"name": "protonorm", **BALANCED}, (LR, LAMBDA, GAMMA)),
    "gfpl-balanced": ({"name": "gfpl", **BALANCED}, (LR, LAMBDA)),
    "unshared": ({"name": "beacon", "exchange": False}, (LR,)),
    "beacon": ({"name": "beacon"}, (LR,)),
    "fedmrl-tiny": ({"name": "fedmrl", "auxiliary": "tiny", "auxiliary_d": 256, **BALANCED}, (LR,)),
}
"""Method options of every arm, and what is tuned; of two networks the learning rate is that of the client's own."""
STUDIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "scarce-fair": ("scarce", {}, ""),
    "scarce-200-fair": ("scarce", {"rounds": 200, "evaluation.every": 50}, "scarce-fair"),
    "cifar10-small4-fair": ("cifar10-scarce", {"model.name": "small4", "model.shared": "cnn2"}, ""),
    "fed-mnist7k-tuned-fair": ("fed-mnist7k-tuned", {}, "scarce-fair"),
    "unseen-fair": ("unseen", {}, "scarce-fair"),
    "many-clients-fair": ("many-clients", {}, "scarce-fair"),
    "many-classes-32-fair": ("many-classes", {"data.options.resize": 32}, "cifar10-small4-fair"),
}
"""Recipe and overrides of a study, and the study whose values it takes where tuning itself would cost hours."""


def grid(arm: str) -> list[dict[str, float]]:
    """Return what is tried of an arm."""
    names = ARMS[arm][1]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*(GRID[n] for n in names))]


def label(arm: str, place: int) -> str:
    """Return the name of a variant: an arm, and its place in the grid."""
    return f"{arm}__{place}"


def run(study: str, places: dict[str, list[int]], seeds: tuple[int, ...], out: Path, jobs: int) -> None:
    """Make the runs of some variants that are not there yet, by ``protofed compare``."""
    recipe, overrides, _ = STUDIES[study]
    tree = apply_overrides(load_recipe(recipe), overrides)
    tree["evaluation"]["on_every"] = tree["rounds"]
    variants = {}
    for arm, chosen in places.items():
        for place in chosen:
            variant: dict[str, Any] = {
                "method": dict(ARMS[arm][0]),
                "training": {"optimizer": "Adam", "momentum": 0.0},
            }
            variants[label(arm, place)] = apply_overrides(variant, grid(arm)[place])
    tree["variants"] = variants
    tree["compare"] = {"methods": list(variants), "seeds": list(seeds)}
    tree.pop("methods", None)  # what recipes set by method is what is tuned here
    tree["methods"] = {"gfpl": {"momentum": 0.0}}
    out.mkdir(parents=True, exist_ok=True)
    path = out.parent / f"{out.name}.toml"
    path.write_text(tomli_w.dumps(tree), encoding="utf-8")
    resume = ["--resume"] if (out / "comparison.json").is_file() else []
    command = ["protofed", "compare", str(path), "--out", str(out), "--jobs", str(jobs), "--quiet", *resume]
    subprocess.run(command, check=True)


def validated(directory: Path) -> float:
    """Return the accuracy on validation samples in a run's last round."""
    last = load_run(directory).rounds[-1].validation
    assert last is not None
    return last.weighted[OWN_RULE]


def choose(out: Path, arms: Sequence[str]) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """Return the place of each arm that is best on validation samples, and a row for everything that was tried."""
    best: dict[str, int] = {}
    rows = []
    for arm in arms:
        means = []
        for place, values in enumerate(grid(arm)):
            scores = [validated(out / f"{label(arm, place)}-seed{seed}") for seed in TUNING]
            means.append(statistics.fmean(scores))
            rows.append({"arm": arm, **values, "validation": means[-1]})
        best[arm] = means.index(max(means))
        rows[best[arm] - len(means)]["chosen"] = 1
    return best, rows


def chosen_of(study: str, arms: Sequence[str]) -> dict[str, int]:
    """Return the places of some arms that a saved study has chosen."""
    rows = [row for row in read_rows(TUNED) if row["study"] == study]
    return {arm: [bool(r["chosen"]) for r in rows if r["arm"] == arm].index(True) for arm in arms}


def keep(study: str, rows: list[dict[str, Any]]) -> None:
    """Write what was tried in a study to tuning/tried.csv, in place of what it said of the same arms."""
    tried = {row["arm"] for row in rows}
    others = [row for row in read_rows(TUNED) if row["study"] != study or row["arm"] not in tried]
    names = ("study", "arm", *GRID, "validation", "chosen")
    write_rows(TUNED, names, [*others, *({"study": study, **row} for row in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("directory", type=Path, help="of its runs")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)), help="of the chosen values")
    parser.add_argument("--arms", default=",".join(ARMS), help="those to run; saved figures of others stay")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--save", action="store_true", help="write what was chosen, and the figures of it")
    given = parser.parse_args()
    source, tried = STUDIES[given.study][2], given.directory / "tuning"
    arms = given.arms.split(",")
    rows: list[dict[str, Any]] = []
    if source:
        best = chosen_of(source, arms)
    else:
        run(given.study, {arm: list(range(len(grid(arm)))) for arm in arms}, TUNING, tried, given.jobs)
        best, rows = choose(tried, arms)
    final = given.directory / "chosen"
    seeds = tuple(seed for seed in map(int, given.seeds.split(",")) if source or seed not in TUNING)
    run(given.study, {arm: [place] for arm, place in best.items()}, seeds, final, given.jobs)
    if given.save:
        wanted = {label(arm, place): arm for arm, place in best.items()}
        found = arms_of([final] if source else [tried, final])
        path = STUDY / f"{given.study}.csv"
        others = [arm for arm in arms_of([path]) if arm.label not in arms] if path.is_file() else []
        save([*others, *(Arm(wanted[arm.label], arm.runs) for arm in found if arm.label in wanted)], path)
        if rows:
            keep(given.study, rows)


if __name__ == "__main__":
    main()
