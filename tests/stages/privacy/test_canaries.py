"""One sample is not found, whichever step it passes through; where the cover of the step is taken off, it is.

Each step is audited in one run (Steinke, Nasr and Jagielski 2023): a canary is among the samples of each of many
clients, or of each of several runs of one client, by a coin. The attacker knows all samples but that, and the
weights before and after a round without noise, with the canary and without: nobody guesses better.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import tomli_w
import torch

pytest.importorskip("dp_accounting", reason="uv pip install '.[privacy]'")

from protofed.compute.seeding import generator
from protofed.errors import ConfigError
from protofed.experiments.assemble import assemble
from protofed.rounds.loop import Federation
from protofed.visits.rare import without_rare
from stages.privacy.auditing import lower_bound
from support import build, client, command, experiment, federated, few, uploads
from support import ordinary as ordinary_clients

Rows = Sequence[Sequence[object]]
EPSILON, DELTA = 1.0, 1e-5
N = 300  #: Samples of a client beside the canary
WIDE = 1e6
LR = 0.1


def table(client: Path, name: str, rows: Rows) -> None:
    """Write a table with the columns ``a``, ``b`` and the label."""
    with (client / f"{name}.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["a", "b", "label"], *rows])


def arrays(shape: tuple[int, ...]) -> Callable[[Path, str, Rows], None]:
    """Return what writes rows as vectors or series, whose first entry is ``a`` and whose last is ``b``."""

    def write(client: Path, name: str, rows: Rows) -> None:
        x = np.zeros((len(rows), *shape), dtype=np.float32)
        for place, (a, b, _) in enumerate(rows):
            x[place, 0], x[place, -1] = a, b
        np.savez(client / f"{name}.npz", x=x, y=np.array([row[-1] for row in rows]))

    return write


def ordinary() -> list[list[object]]:
    """Return samples whose value ``a`` tells their class, so that all gradients point in one direction."""
    return [[2 * (n % 2) - 1, (n % 7) / 7, n % 2] for n in range(N)]


def absent() -> list[list[object]]:
    """Return samples of which the class 1 lacks the value ``a``, and those of the class 0 have 0."""
    return [["" if n % 2 else 0, (n % 7) / 7, n % 2] for n in range(N)]


def scattered() -> list[list[object]]:
    """Return samples with a direction of their own each, so that it matters which are trained on."""
    return [[n + 2, 0, n % 2] for n in range(2 * N)]


def directions(client: Path, name: str, rows: Rows) -> None:
    """Write rows as random vectors that follow from ``a``."""
    x = np.stack([np.random.default_rng(int(a)).choice([-1.0, 1.0], 256) for a, _, _ in rows])  # type: ignore[call-overload]
    np.savez(client / f"{name}.npz", x=x.astype(np.float32), y=np.array([row[-1] for row in rows]))


def coloured() -> list[list[object]]:
    return [["red" if n % 2 else "blue", (n % 7) / 7, n % 2] for n in range(N)]


@dataclass(frozen=True)
class Step:
    """A step that depends on samples."""

    canary: tuple[object, ...]  #: The sample
    covered: dict[str, Any]  #: Options that cover the step
    open: dict[str, Any]  #: Options with which it would depend on the sample
    #: What has to be replaced for it to be taken, by name: the checks, or the noise
    off: dict[str, Any] = field(default_factory=lambda: {"protofed.experiments.builder.check_steps": nothing})
    rows: Callable[[], list[list[object]]] = ordinary  #: The other samples
    write: Callable[[Path, str, Rows], None] = table  #: Writes a client's file
    together: bool = True  #: Whether the canaries of many clients can be tried in one run
    message: str = ""  #: How the open step is refused; "" if it is made private instead
    more: dict[str, Any] = field(default_factory=dict)  #: Options in any case


def nothing(*_: object) -> None:
    """Check nothing."""


RANGES = {"data__ranges": {"*": [-1, 1]}}
WILD = (WIDE, 0.5, 1)
UNFIT = {"protofed.config.schema.check_fit": nothing}
STEPS = {
    "standardisation by site": Step(WILD, RANGES, {"data__standardise": "site"}, message="data.standardise=site"),
    "federated standardisation": Step(
        WILD, RANGES, {"data__standardise": "federated"}, together=False, message="data.standardise=federated"
    ),
    "scaling of vectors": Step(
        WILD, RANGES, {"data__standardise": "site"}, write=arrays((3,)), message="data.standardise=site"
    ),
    "scaling of series": Step(
        WILD, RANGES, {"data__standardise": "site"}, write=arrays((3, 4)), message="data.standardise=site"
    ),
    "imputation": Step(
        (WIDE, 0.5, 0), RANGES, {"data__standardise": "none"}, rows=absent, message="data.missing=mean",
        more={"data__missing": "mean"},
    ),
    "inputs that show missing values": Step(
        ("", 0.5, 0), RANGES, {"data__standardise": "none"}, together=False, message="data.missing=indicator",
        more={"data__missing": "indicator"},
    ),
    "categories": Step(
        ("green", 0.5, 1),
        {"data__ranges": {"b": [0, 1]}, "data__categories": {"a": ["blue", "green", "red"]}},
        {"data__ranges": {"b": [0, 1]}},
        rows=coloured,
        together=False,
        message="categories as they occur",
    ),
    "samples held out for validation": Step(
        (1, 0.5, 1), RANGES, {**RANGES, "data__validation_fraction": 0.5}, message="data.validation_fraction",
        rows=scattered, write=directions, together=False, off=UNFIT,
    ),
    "samples left out": Step(
        (1, 0.5, 1), RANGES, {**RANGES, "data__train_samples": N}, message="data.train_samples",
        rows=scattered, write=directions, together=False, off=UNFIT,
    ),
    "class weights": Step(
        (0.2, 0.5, 1),
        RANGES,
        RANGES,
        {"protofed.experiments.builder.private_counts": lambda counts, *_: counts},
        rows=lambda: [[0.5, (n % 7) / 7, 0] for n in range(2 * N)],
        more={"training__class_weights": "balanced", "privacy__clip": 1.0},
    ),
}  # fmt: skip


def federation(step: Step, root: Path, present: Sequence[bool], chosen: dict[str, Any], **more: Any) -> Federation:
    """Return the federation of the clients in which the canary is present or not, of their folder."""
    for number, there in enumerate(present):
        client = root / "clients" / f"c{number:02}"
        client.mkdir(parents=True)
        rows = step.rows()
        step.write(client, "train", [*rows, step.canary] if there else rows)
        step.write(client, "test", [*rows[:4], [*rows[1][:2], 1]])
    place = {"data__source": "path", "data__path": str(root), "rounds": 1, "training__batch_size": 10**6}
    private = {"privacy__mode": "sample", "privacy__delta": DELTA, "privacy__clip": 0.1}
    wanted = {**place, **private, "execution__executor": "sequential", **step.more, **chosen, **more}
    return assemble(experiment("fedavg", **wanted))[0]


def sums(made: Federation) -> list[torch.Tensor]:
    """Return the sum of gradients that follows from each client's upload, and from the number of its samples."""
    before = made.server
    return [
        torch.cat([(before[n] - t).flatten() for n, t in sorted(one.payload.items()) if n in before])
        * len(made.executor.clients[one.client].train)
        for one in uploads(made)
    ]


def audit(step: Step, root: Path, chosen: dict[str, Any]) -> float:
    """Return the ε that an attacker proves who knows everything but the coins."""
    without = {"privacy__noise": 0.0}
    present = torch.rand(40 if step.together else 24, generator=generator(3, "coins")) < 0.5
    (there,), (gone,) = (
        sums(federation(step, root / f"known {which}", [which], chosen, **without)) for which in (True, False)
    )
    found: list[torch.Tensor] = []
    groups = [present.tolist()] if step.together else [[coin] for coin in present.tolist()]
    for number, group in enumerate(groups):
        made = federation(step, root / f"{number}", group, chosen, privacy__epsilon=EPSILON, seed=0)
        noisy = replace(made.executor.trainer, seed=number)  # other noise, the same weights
        made.executor.trainer = noisy
        found += sums(made)
        made.executor.close()
    if there.shape != gone.shape:  # the form of the upload tells
        scores = torch.tensor([float(one.shape == there.shape) for one in found])
    else:
        scores = torch.stack([(one - (there + gone) / 2) @ (there - gone) for one in found])
    return lower_bound(scores, present, DELTA, len(present))


@pytest.mark.slow
@few("name", STEPS, 1)
def test_a_canary_is_found_where_a_step_is_not_covered_and_not_where_it_is(name, tmp_path):
    step = STEPS[name]
    assert audit(step, tmp_path / "covered", step.covered) < EPSILON
    with ExitStack() as stack:
        for target, other in step.off.items():
            stack.enter_context(patch(target, other))
        assert audit(step, tmp_path / "open", step.open) > EPSILON, "the audit would not notice a leak"


@few("name", [name for name, step in STEPS.items() if step.message], 4)
def test_an_uncovered_step_is_refused_as_typed(name, tmp_path, monkeypatch, capsys):
    step = STEPS[name]
    chosen = {**step.more, **step.open, "privacy__mode": "sample", "privacy__epsilon": EPSILON}
    status, error = typed(step, tmp_path, chosen, monkeypatch, capsys)
    assert status != 0
    assert error.count("\n") == 1
    assert step.message in error
    assert "privacy.mode=sample" in error
    assert not (tmp_path / "run").exists()


def typed(step: Step, folder: Path, chosen: dict[str, Any], monkeypatch: Any, capsys: Any) -> tuple[int, str]:
    """Run a recipe of two clients, one with the canary, as a user does; return the status and the errors."""
    for name, rows in (("ann", [*step.rows(), step.canary]), ("bob", step.rows())):
        client = folder / "data" / "clients" / name
        client.mkdir(parents=True)
        step.write(client, "train", rows)
        step.write(client, "test", rows[:4])
    place = {"data__source": "path", "data__path": str(folder / "data"), "rounds": 1}
    recipe = folder / "recipe.toml"
    with patch("protofed.config.schema.check_fit", nothing):  # else it is refused before there is a recipe
        recipe.write_text(tomli_w.dumps(experiment("fedavg", **place, **chosen).to_tree()))
    status, _, error = command(monkeypatch, capsys, "run", recipe, "--out", folder / "run")
    return status, error


@pytest.mark.slow
def test_the_row_of_a_million_is_clamped_counted_and_said(tmp_path, monkeypatch, capsys):
    step = STEPS["standardisation by site"]
    chosen = {**step.covered, "privacy__mode": "sample", "privacy__epsilon": EPSILON}
    assert typed(step, tmp_path, chosen, monkeypatch, capsys)[0] == 0
    notes = json.loads((tmp_path / "run" / "federation.json").read_text())["notes"]
    assert "Values beyond their declared range were clamped to it (data.ranges): 1 of a." in notes


def test_a_clamped_row_moves_the_model_no_further_than_any_other(tmp_path):
    """The sum of gradients with it and without differs by the norm C at most."""
    step = STEPS["standardisation by site"]
    (there,), (gone,) = (
        sums(federation(step, tmp_path / f"{which}", [which], step.covered, privacy__noise=0.0))
        for which in (True, False)
    )
    assert 0.05 < float((there - gone).norm()) / LR <= 0.1 * (1 + 1e-3)


def test_early_stopping_by_scores_that_no_noise_hides_is_refused_as_typed(tmp_path, monkeypatch, capsys):
    options = {**RANGES, "privacy__mode": "sample", "privacy__epsilon": EPSILON, "evaluation__patience": 1}
    place = {"data__source": "path", "data__path": str(tmp_path / "data"), "rounds": 3}
    step = STEPS["standardisation by site"]
    for name in ("ann", "bob"):
        client = tmp_path / "data" / "clients" / name
        client.mkdir(parents=True)
        for part in ("train", "test"):
            table(client, part, step.rows())
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(tomli_w.dumps(experiment("beacon", **place, **options).to_tree()))
    status, _, error = command(monkeypatch, capsys, "run", recipe, "--out", tmp_path / "run")
    assert status != 0
    assert error.count("\n") == 1
    assert "privacy.mode=sample does not cover evaluation.patience" in error


# What a node tells.


def described(root: Path, canary: list[Any], **chosen: Any) -> object:
    """Return what a node tells of its client before training; there are always as many samples."""
    from protofed_flower.sources import Folder

    folder = root / "ann"
    folder.mkdir(parents=True)
    table(folder, "train", [*ordinary(), canary])
    table(folder, "test", ordinary()[:4])
    private = {"privacy__mode": "sample", "privacy__epsilon": EPSILON, "data__source": "path"}
    return Folder(folder, "ann", names=True).describe(experiment("fedavg", **{**private, **chosen}))


@pytest.mark.parametrize("canary", [[WIDE, 0.5, 1], ["", 0.5, 0], [0.1, -WIDE, 2], [1, 1, 3]])
@pytest.mark.parametrize("missing", ["mean", "indicator"])
def test_what_a_node_tells_does_not_depend_on_any_training_sample(canary, missing, tmp_path):
    pytest.importorskip("flwr")
    chosen = {**RANGES, "data__classes": 4, "data__missing": missing}
    expected = described(tmp_path / "a", [1, 0.5, 1], **chosen)
    assert described(tmp_path / "b", canary, **chosen) == expected


def test_classes_as_they_occur_are_refused_by_a_node_and_would_tell(tmp_path, monkeypatch):
    pytest.importorskip("flwr")
    with pytest.raises(ConfigError, match="does not cover classes as they occur among the labels of ann"):
        described(tmp_path / "a", [1, 0.5, 2], **RANGES)
    monkeypatch.setattr("protofed_flower.sources.check_classes", nothing)
    found = [described(tmp_path / f"{label}", [1, 0.5, label], **RANGES) for label in (1, 2)]
    assert found[0] != found[1]


# Rare classes.


def reports(present: Sequence[bool], true: bool, monkeypatch: Any) -> torch.Tensor:
    """Return whether clients report a class of as many samples as are needed with the canary, and one less without.

    Args:
        present: Whether the canary is at each client.
        true: Whether true numbers decide in place of noisy ones.
        monkeypatch: Takes the noise off.
    """
    least, labels = 200, [0] * 199 + [1] * 300
    clients = [client(f"c{i:02}", [*labels, 0] if there else labels, [0, 1]) for i, there in enumerate(present)]
    chosen = {"rounds": 1, "privacy__mode": "sample", "privacy__epsilon": EPSILON, "training__batch_size": 10**6}
    made = build("fedproto", federated(*clients), **chosen, privacy__least_samples=least)
    if true:
        counts = {c.name: c.train.counts(4) for c in clients}

        def known(payload, schema, counts_, least, received):
            name = next(names)
            return without_rare(payload, schema, counts[name], least, received)

        names = iter(made.names)
        monkeypatch.setattr("protofed.visits.visit.without_rare", known)
    return torch.tensor([float(0 in u.payload["classes"].tolist()) for u in uploads(made)])


@pytest.mark.slow
def test_noisy_numbers_decide_which_classes_are_rare(monkeypatch):
    present = torch.rand(60, generator=generator(4, "coins")) < 0.5
    assert lower_bound(reports(present.tolist(), False, monkeypatch), present, DELTA, 60) < EPSILON
    assert lower_bound(reports(present.tolist(), True, monkeypatch), present, DELTA, 60) > EPSILON


def test_nothing_that_leaves_depends_on_validation_or_test_samples():
    """Validation samples fit the fusion and test samples are scored, and both stay at the client."""
    chosen = {"method__fusion": "validation", "rounds": 2, "privacy__mode": "sample", "privacy__noise": 1.0}
    chosen["privacy__accountant"] = "rdp"  # the quicker one

    def server(part: str) -> dict[str, torch.Tensor]:
        """Return what the server knows in the end if a sample of one part is another."""
        first, *others = (replace(c, validation=c.test) for c in ordinary_clients().clients)
        other = getattr(first, part)
        far = replace(other, x=other.x.index_fill(0, torch.tensor([0]), 1e3))
        made, _ = assemble(experiment("beacon", **chosen), federated(replace(first, **{part: far}), *others))
        list(made.run())
        return made.server

    expected = server("validation")
    found = server("test")
    assert all(torch.equal(expected[name], tensor) for name, tensor in found.items())
    assert not all(torch.equal(expected[name], tensor) for name, tensor in server("train").items())
