"""Hostile clients among twenty, with bounds and without: ``papers/tools/closed_robust.py FILE [--run]``.

``--run`` measures what FILE, a CSV, lacks; the table of docs/security.md is printed from it. Forged sums are made
with all honest clients' in view.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple
from unittest import mock

import torch

from protofed.config.schema import apply_overrides, load_recipe, resolve
from protofed.experiments.assemble import assemble
from protofed.experiments.loading import load_data
from protofed.methods import Upload
from protofed.methods.parts.moments import symmetric, triangle
from rows import load, markdown, save

SEEDS, MOST = (0, 1, 2), 2**30
SMALL: dict[str, Any] = {"data.clients": 20, "evaluation.on": "union"}
ENCODED: dict[str, Any] = {**SMALL, "encoder.name": "random", "encoder.dim": 64}
FORGED = {
    "none": "nobody",
    "mirrored": "mirrored means",
    "swapped": "means of other classes",
    "enlarged": "scatter",
}
NAMES = {**FORGED, "inner_product": "opposite of the mean"}
SUMS = [("none", 0, 0), ("mirrored", 1, MOST), ("swapped", 1, MOST), ("enlarged", 1, 0)]
SUMS += [("mirrored", 4, 0), ("swapped", 4, 0), ("enlarged", 4, 0)]
CASES: list[tuple[str, dict[str, Any], list[tuple[str, int, int]]]] = [
    *((method, ENCODED, SUMS) for method in ("fedlda", "fed3r", "fedncm")),
    ("local_lda", ENCODED, SUMS[:1]),
    ("beacon", SMALL, [("none", 0, 0), ("inner_product", 1, MOST), ("inner_product", 4, 0)]),
    ("local", SMALL, SUMS[:1]),
]
"""Methods, options, and attacks with their numbers of clients and of samples that each states (0 = the truth)."""


class Result(NamedTuple):
    """Accuracies of one run, as fractions: of the honest clients, and of the rule on all classes."""

    method: str
    attack: str
    clients: int
    samples: int
    rule: str
    seed: int
    own: float
    union: float


def forged(
    kind: str, uploads: Sequence[Upload], hostile: Sequence[str], *_: object, factor: float = 100.0
) -> Mapping[str, Upload]:
    """Return the uploads of hostile clients: consistent sums, as samples could have them.

    Args:
        factor: Of the variance along the directions between the classes.
    """
    sums: dict[int, torch.Tensor] = {}
    for upload in uploads:
        if upload.client not in hostile:
            rows, counts = upload.payload["means"].double(), upload.payload["counts"].double()
            for k, row, n in zip(upload.payload["classes"].tolist(), rows, counts, strict=True):
                sums[k] = sums.get(k, torch.zeros(len(row) + 1)) + n * torch.cat([row, torch.ones(1)])
    centres = {k: total[:-1] / total[-1] for k, total in sorted(sums.items())}
    between = torch.stack([*centres.values()]) - torch.stack([*centres.values()]).mean(0)
    basis = torch.linalg.qr(between.mT)[0][:, : len(centres) - 1]
    found, order = {}, list(centres)
    for upload in uploads:
        if upload.client not in hostile:
            continue
        payload, means = dict(upload.payload), upload.payload["means"].double()
        n = payload["counts"].double() / payload["counts"].sum()
        d = means.shape[1]
        scatter = torch.zeros(d, d, dtype=torch.float64)
        if "moment" in payload:
            scatter = symmetric(payload["moment"].double(), d) - (means.mT * n) @ means
        if kind == "mirrored":
            means = 2 * torch.stack([*centres.values()]).mean(0) - means
        elif kind == "swapped":
            known = [k if k in centres else order[0] for k in payload["classes"].tolist()]
            means = torch.stack([centres[order[(order.index(k) + 1) % len(order)]] for k in known])
        else:
            wide = torch.eye(d, dtype=torch.float64) + (factor**0.5 - 1) * basis @ basis.mT
            scatter = wide @ scatter @ wide
        payload["means"] = means.to(payload["means"].dtype)
        if "moment" in payload:
            payload["moment"] = triangle(scatter + (means.mT * n) @ means).to(payload["moment"].dtype)
        found[upload.client] = Upload(upload.client, payload)
    return found


def measured(method: str, attack: str, clients: int, samples: int, rule: str, seed: int, **more: Any) -> Result:
    """Return the result of one run."""
    options = next(options for name, options, _ in CASES if name == method)
    chosen = {**options, "robust.rule": rule, **more}
    if attack != "none":  # forged sums take the place of this attack's
        chosen |= {"attack.kind": "inner_product", "attack.clients": clients, "attack.samples": samples}
    experiment = resolve(apply_overrides(load_recipe("quickstart"), chosen), method=method, seed=seed)
    federation, _ = assemble(experiment, load_data(experiment))
    with closing(federation.executor):
        crafted = "protofed.stages.attack.attackers.craft_uploads"
        forge = mock.patch(crafted, lambda kind, *given: forged(attack, *given))
        with forge if attack in FORGED else nullcontext():
            *_, record = federation.run()
    assert record.accuracy
    assert record.union
    hostile = record.attack.clients if record.attack else ()
    each = zip(federation.names, record.accuracy.clients["head"], strict=True)
    own = fmean(a for name, a in each if a is not None and name not in hostile)
    return Result(
        method, attack, clients, samples, rule, seed, own, record.union.weighted.get("global_model", float("nan"))
    )


def cases() -> Iterator[tuple[str, str, int, int, str, int]]:
    """Yield the arguments of all runs."""
    for method, options, attacks in CASES:
        for rule, (attack, clients, samples) in product(("none", "clip"), attacks):
            if rule == "none" or "local" not in method:
                seeds = SEEDS if options is ENCODED else SEEDS[:1]  # networks take minutes
                yield from ((method, attack, clients, samples, rule, seed) for seed in seeds)


def table(found: Sequence[Result]) -> str:
    """Return a Markdown table: own classes / all classes in %, means over seeds, by attack, method and rule."""
    columns = list(dict.fromkeys((r.method, r.rule) for r in found))
    names = [f"`{method}`, {rule}" if "local" not in method else f"`{method}`" for method, rule in columns]
    rows = []
    for case in dict.fromkeys((r.attack, r.clients, r.samples) for r in found):
        cells = []
        for column in columns:
            each = [r for r in found if (r.attack, r.clients, r.samples, r.method, r.rule) == (*case, *column)]
            means = [100 * fmean(getattr(r, part) for r in each) for part in ("own", "union") if each]
            cells.append(" / ".join(f"{mean:.1f}" for mean in means if mean == mean) or "–")
        who = f"{case[1]}: {NAMES[case[0]]}" if case[1] else "nobody"
        rows.append([who, "2³⁰ samples" if case[2] else ("the truth" if case[1] else ""), *cells])
    return markdown(["hostile", "state", *names], rows, "  " + "r" * len(names))


def main() -> None:
    """Measure or read, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--run", action="store_true")
    given = parser.parse_args()
    found = load(Result, given.file)
    if given.run:
        known = {result[:6] for result in found}
        for case in cases():
            if case not in known:
                found.append(measured(*case))
                save(found, given.file)
    print(table(found))


if __name__ == "__main__":
    main()
