"""FedLDA's accuracy against ε, one noisy release: ``papers/tools/closed_privacy.py FILE [--run] [--figure PNG]``.

``--run`` measures ``fed-mnist7k`` and writes FILE, a CSV; without it FILE is read. The table goes to standard
output. Sums are made as secure aggregation makes them, without its masks, which change no digit of them.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from protofed.config.schema import Tree, apply_overrides, load_recipe, resolve
from protofed.experiments.assemble import assemble
from protofed.experiments.loading import load_data
from protofed.experiments.stages import secure_stage
from protofed.methods.fedlda import FedLDA
from protofed.methods.parts.moments import Linear
from protofed.rounds.stage import Opened
from protofed.samples import FederatedData
from protofed.stages.privacy.samples import multiplier
from protofed.text import mean_std
from protofed.visits.executor import Sequential
from rows import load, markdown, save

DIMS, BUDGETS, SEEDS = (32, 64, 128), (0.5, 1.0, 2.0, 4.0, 8.0, math.inf), (0, 1, 2)
CLIENTS = "each client's upload"
SUM = "the sum"


class Result(NamedTuple):
    """Accuracies of one run, as fractions: own by ``head``, union and unseen by ``global_model``."""

    method: str
    dim: int
    hidden: str
    epsilon: float
    seed: int
    own: float
    union: float
    unseen: float


def measured() -> Iterator[Result]:
    """Yield all results."""
    for dim in DIMS:
        chosen = {"encoder.name": "scattering", "encoder.dim": dim, "encoder.unit": True, "evaluation.on": "union"}
        recipe = apply_overrides(load_recipe("fed-mnist7k"), chosen)
        data = load_data(resolve(recipe, method="fedlda"))
        yield run(recipe, data, "local_lda", dim, math.inf, 0)
        yield from summed(recipe, data, dim)
        for epsilon in BUDGETS[:-1] if dim < 128 else ():
            for seed in SEEDS:
                yield run(recipe, data, "fedlda", dim, epsilon, seed)


def run(recipe: Tree, data: FederatedData, method: str, dim: int, epsilon: float, seed: int) -> Result:
    """Return the result of a run in which each client adds all of the noise, or that sends nothing."""
    own = {"privacy.mode": "sample", "privacy.epsilon": epsilon} if method == "fedlda" else {}
    federation, _ = assemble(resolve(apply_overrides(recipe, own), method=method, seed=seed), data)
    with closing(federation.executor):
        (record,) = federation.run()
    assert record.accuracy
    assert record.union
    assert record.unseen
    rule, hidden = ("global_model", CLIENTS) if own else ("head", SUM)
    scores = record.accuracy.weighted["head"], record.union.weighted[rule], record.unseen.weighted[rule]
    return Result(method, dim, hidden, epsilon, seed, *scores)


def summed(recipe: Tree, data: FederatedData, dim: int) -> Iterator[Result]:
    """Yield the results with noise on the sum; uploads are made once, and their sum and its noise for each run."""
    secure: dict[str, Any] = {
        "execution.executor": "sequential",
        "secure.aggregation": True,
        "privacy.mode": "sample",
        "privacy.epsilon": math.inf,
    }
    federation, _ = assemble(resolve(apply_overrides(recipe, secure), method="fedlda"), data)
    executor = federation.executor
    assert isinstance(executor, Sequential)
    with closing(executor):
        sent = federation.exchange(federation.participation.trainable, 1)
    x, y = torch.cat([c.test.x for c in data.clients]), torch.cat([c.test.y for c in data.clients])
    held, counts = y.bincount(minlength=data.num_classes), [c.train.counts(data.num_classes) for c in data.clients]
    for epsilon, seed in product(BUDGETS, SEEDS):
        chosen = resolve(
            apply_overrides(recipe, {**secure, "privacy.epsilon": epsilon}), method="fedlda", seed=seed
        )
        honest = chosen.secure.least(len(data.clients)) - chosen.privacy.colluders
        task = replace(federation.method.task, noise=multiplier(chosen.privacy) / math.sqrt(honest))
        method = FedLDA(chosen.method_options, task)
        stage = secure_stage(chosen, replace(executor.trainer, method=method, seed=seed))
        assert stage is not None
        state = method.aggregate({}, iter(stage.shown(sent, Opened(1, {}, None), seed)), 1).state
        made = Linear.named(state)
        right = made.scores(x).argmax(1) == y
        hits = y.bincount(right.double(), minlength=data.num_classes)
        own = sum(
            int((method.head(made, c.test.x, method.client_state(n)).argmax(1) == c.test.y).sum())
            for c, n in zip(data.clients, counts, strict=True)
        )
        unseen = sum(float(hits[n == 0].sum()) for n in counts) / sum(int(held[n == 0].sum()) for n in counts)
        yield Result("fedlda", dim, SUM, epsilon, seed, own / len(y), float(right.double().mean()), unseen)


def table(found: list[Result]) -> str:
    """Return own, union and unseen accuracy, mean and standard deviation over seeds, as a Markdown table."""
    heads = ["∞" if math.isinf(epsilon) else f"{epsilon:g}" for epsilon in BUDGETS]
    rows: list[list[str]] = []
    for hidden in (SUM, CLIENTS):
        for dim in DIMS:
            for part in ("own", "union", "unseen"):
                same = [r for r in found if (r.method, r.dim, r.hidden) == ("fedlda", dim, hidden)]
                if not same:
                    continue
                each = [[getattr(r, part) for r in same if r.epsilon == epsilon] for epsilon in BUDGETS]
                cells = (mean_std(v).removesuffix("%").strip() if v else "–" for v in each)
                rows.append([hidden, str(dim), part, *cells])
    for r in found:
        if r.method == "local_lda":
            rows.append(["`local_lda`, no noise", str(r.dim), "own", *[f"{100 * r.own:.1f}"] * len(heads)])
    return markdown(["noise hides", "D", "classes", *heads], rows, " r " + "r" * len(heads))


def draw(found: list[Result], path: Path) -> None:
    """Draw own and unseen accuracy against ε."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained", sharey=True)
    places = range(len(BUDGETS))
    for panel, part in zip(panels, ("own", "unseen"), strict=True):
        for colour, dim in zip(("C0", "C1", "C2"), DIMS, strict=True):
            for hidden, style in ((SUM, "-o"), (CLIENTS, "--o")):
                same = [r for r in found if (r.method, r.dim, r.hidden) == ("fedlda", dim, hidden)]
                each = [[100 * getattr(r, part) for r in same if r.epsilon == epsilon] for epsilon in BUDGETS]
                points = [(x, sum(v) / len(v)) for x, v in zip(places, each, strict=True) if v]
                if not points:
                    continue
                panel.plot(
                    *zip(*points, strict=True), style, color=colour, ms=4, label=f"D = {dim}, noise on {hidden}"
                )
            if part == "own":
                alone = next(100 * r.own for r in found if r.method == "local_lda" and r.dim == dim)
                panel.axhline(alone, color=colour, lw=0.8, ls=":", label=f"D = {dim}, local_lda")
        panel.set_xticks(places, ["∞" if math.isinf(epsilon) else f"{epsilon:g}" for epsilon in BUDGETS])
        panel.set_xlabel("ε (δ = 1e-5)")
        panel.set_title({"own": "own classes", "unseen": "classes that a client never saw"}[part])
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy in %")
    panels[0].legend(fontsize=7)
    figure.savefig(path, dpi=130)


def main() -> None:
    """Measure or read, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--run", action="store_true")
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    if given.run:
        save(list(measured()), given.file)
    found = load(Result, given.file)
    print(table(found))
    if given.figure:
        draw(found, given.figure)


if __name__ == "__main__":
    main()
