"""A closed form's class directions as the targets of ``fixed_etf``: ``papers/tools/fixed_target.py FILE [--run]``.

``--run`` measures ``scarce`` and ``quickstart``, each with the seeded simplex and with FedLDA's whitened class
means, centred and turned to the width of the clients' features by an SVD, and writes FILE, a CSV. The table goes to
standard output: own classes by ``head``, all clients' samples by ``global``, and the paired gain with its 95 %
interval.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from rows import save

from protofed.config.schema import apply_overrides, load_recipe, resolve
from protofed.experiments.assemble import assemble
from protofed.experiments.loading import load_data
from protofed.methods import fixed_etf
from protofed.methods.parts.moments import Sums
from protofed.models.encoders.building import orthonormal
from protofed.prototypes.etf import spread_directions
from protofed.prototypes.geometry import unit_vectors
from protofed.samples import FederatedData
from protofed.text import mean_std
from protofed.trained.paired import difference

RECIPES, SEEDS = {"scarce": 512, "quickstart": 64}, (0, 1, 2)
"""Recipes, with the numbers of the closed form's features."""


class Result(NamedTuple):
    """Accuracies of one run after its last round, as fractions."""

    recipe: str
    target: str
    seed: int
    own: float
    union: float


def directions(data: FederatedData, shrinkage: float = 0.1) -> Tensor:
    """Return the ``(K, K)`` coordinates of the whitened, centred class means of all clients' features."""
    x, y = (torch.cat(parts) for parts in zip(*((c.train.x, c.train.y) for c in data.clients), strict=True))
    sums = Sums.of(x, y, data.num_classes, second=True)
    scatter = sums.scatter / len(y)
    scatter = (1 - shrinkage) * scatter + shrinkage * scatter.diagonal().mean() * torch.eye(len(scatter))
    means = torch.linalg.solve_triangular(torch.linalg.cholesky(scatter), sums.means.rows.mT, upper=False).mT
    u, s, _ = torch.linalg.svd(means - means.mean(0), full_matrices=False)
    coordinates: Tensor = u * s
    return coordinates


def measured() -> Iterator[Result]:
    """Yield all results."""
    for recipe, dim in RECIPES.items():
        given = apply_overrides(load_recipe(recipe), {"evaluation.on": "union", "evaluation.every": 100})
        for seed in SEEDS:
            encoded = apply_overrides(given, {"encoder.name": "scattering", "encoder.dim": dim})
            found = directions(load_data(resolve(encoded, method="fedlda", seed=seed)))

            def turned(K: int, d: int, seed: int, *, dtype: torch.dtype, found: Tensor = found) -> Tensor:
                return unit_vectors(found @ orthonormal(d, K, seed).mT.double()).to(dtype)

            for target, made in {"simplex": spread_directions, "closed form": turned}.items():
                with patch.object(fixed_etf, "spread_directions", made):
                    federation, _ = assemble(resolve(given, method="fixed_etf", seed=seed))
                    with closing(federation.executor):
                        record = list(federation.run())[-1]
                assert record.accuracy
                assert record.union
                yield Result(
                    recipe, target, seed, record.accuracy.weighted["head"], record.union.weighted["global"]
                )


def read(path: Path) -> list[Result]:
    """Return the results in a file."""
    with path.open(encoding="utf-8", newline="") as file:
        return [Result(r[0], r[1], int(r[2]), float(r[3]), float(r[4])) for r in list(csv.reader(file))[1:]]


def table(found: list[Result]) -> str:
    """Return a Markdown table of means and standard deviations over seeds."""
    lines = ["| recipe | scored | simplex | closed form | gain |", "|---|---|---:|---:|---:|"]
    for recipe in RECIPES:
        for part in ("own", "union"):
            each = [
                [getattr(r, part) for r in found if (r.recipe, r.target) == (recipe, target)]
                for target in ("simplex", "closed form")
            ]
            simplex, closed = ([100 * v for v in values] for values in each)
            gain = difference(closed, simplex).text()
            lines.append(f"| `{recipe}` | {part} | {' | '.join(map(mean_std, each))} | {gain} |")
    return "\n".join(lines)


def main() -> None:
    """Measure or read, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--run", action="store_true")
    given = parser.parse_args()
    if given.run:
        save(list(measured()), given.file)
    print(table(read(given.file)))


if __name__ == "__main__":
    main()
