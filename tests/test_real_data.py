"""Runs on real images, small: from files through training to a report."""

from __future__ import annotations

import json
import math

import pytest

import conftest
import protofed

FAST = {"execution.device": "cpu", "execution.threads": 1}


@pytest.fixture
def mnist7k():
    return conftest.real_data("fed-mnist7k")


@pytest.mark.slow
def test_the_federation_folder_learns_in_two_rounds(mnist7k, tmp_path):
    overrides = {**FAST, "method.name": "fedproto", "data.path": str(mnist7k), "rounds": 2, "model.d": 64}
    run = protofed.run("fed-mnist7k", overrides, out=tmp_path / "run")
    assert run.summary.clients == 20
    # Two-sided: most clients hold two or three classes, so guessing well is easy and 1.0 would be a leak.
    assert 0.6 < run.outcome.accuracy["head"].final < 0.99
    assert run.outcome.communication.parameters_per_round["down"] == 20 * 10 * 64


@pytest.mark.slow
@pytest.mark.parametrize(("preset", "least"), [("paper", 0.7), ("htfl", 0.0)])
def test_distillation_stays_finite(mnist7k, tmp_path, preset, least):
    """A widely used public library ends in NaN in the fourth round: its loss, our preset, has no lower bound."""
    overrides = {**FAST, "method.name": "feddistill", "method.preset": preset, "data.path": str(mnist7k)}
    overrides |= {"rounds": 6, "model.name": "mlp", "model.d": 32}
    run = protofed.run("fed-mnist7k", overrides, out=tmp_path / "run")
    assert run.outcome.refused == 0
    assert run.outcome.accuracy["head"].final > least
    assert all(math.isfinite(value) for record in run.rounds for value in record.losses.values())


@pytest.mark.slow
def test_mixed_torchvision_models_on_cifar10(tmp_path):
    root = conftest.real_data("cifar10").parent
    overrides = {
        **FAST,
        "data.source": "cifar10",
        "data.data_dir": str(root),
        "data.samples": 120,
        "data.clients": 4,
        "partition.alpha": 1.0,
        "model.name": "light4",
        "method.name": "fedproto",
        "rounds": 1,
    }
    run = protofed.run("mnist-dirichlet", overrides, out=tmp_path / "run")
    up = sum(
        sum(1 for n in c["train"] if n)
        for c in json.loads((tmp_path / "run/federation.json").read_text())["clients"]
    )
    assert run.outcome.communication.parameters_per_round["up"] == up * 512
    assert run.outcome.refused == 0
    assert run.outcome.accuracy["local"].final > 0


def test_mnist_by_name(tmp_path):
    root = conftest.real_data("mnist").parent
    overrides = {**FAST, "data.data_dir": str(root), "data.samples": 600, "data.clients": 4, "rounds": 2}
    run = protofed.run("mnist-dirichlet", overrides, out=tmp_path / "run")
    assert 0.3 < run.outcome.accuracy["head"].final <= 1.0
