"""bfloat16 layers: only where faster, and never in what is exchanged."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

import protofed
from protofed.experiments import calibration, executors
from protofed.experiments.assemble import assemble
from protofed.experiments.calibration import faster_in_bfloat16
from protofed.experiments.description import describe_clients
from protofed.models import build
from support import experiment, few, ordinary

SMALL = {"rounds": 2, "data.samples": 200, "data.clients": 3, "partition.alpha": 1.0, "model.d": 16}


def test_features_keep_their_precision():
    model = build("cnn2", input_shape=(1, 8, 8), num_classes=3, d=8)
    x = torch.rand(4, 1, 8, 8)
    exact = model(x)
    model.in_bfloat16 = True
    rounded = model(x)
    for a, b in zip(exact, rounded, strict=True):
        assert b.dtype == torch.float32
        assert not torch.equal(a, b)
        torch.testing.assert_close(a, b, rtol=0.1, atol=0.05)


@few("executor", ["sequential", "workers", "fused"], 1)
def test_chosen_models_run_in_bfloat16_on_every_executor(monkeypatch, executor):
    monkeypatch.setattr(executors, "faster_in_bfloat16", lambda roster: list(roster.models))
    options = {
        "execution__executor": executor,
        "execution__precision": "bf16",
        "execution__threads": 1,
        "rounds": 3,
    }
    federation, data = assemble(experiment("fedproto", **options), ordinary())
    with closing(federation.executor):
        assert describe_clients(federation, data)["bfloat16"] == ["mlp(hidden=[7]), d=5"]
        records = list(federation.run())
        assert federation.server["prototypes"].dtype == torch.float32
    exact, _ = assemble(experiment("fedproto", **{**options, "execution__precision": "fp32"}), ordinary())
    with closing(exact.executor):
        for a, b in zip(records, exact.run(), strict=True):
            assert a.losses != b.losses
            assert a.losses["total"] == pytest.approx(b.losses["total"], rel=0.05)


def test_calibration_takes_what_is_faster(monkeypatch):
    federation, _ = assemble(experiment("fedproto"), ordinary())
    seconds = {False: 1.0, True: 0.5}
    monkeypatch.setattr(calibration, "_step", lambda model, x, y: seconds[model.in_bfloat16])
    assert faster_in_bfloat16(federation.executor.clients) == ["mlp(hidden=[7]), d=5"]
    seconds[True] = 0.95  # hardly faster is not worth the precision
    assert faster_in_bfloat16(federation.executor.clients) == []
    assert not any(m.in_bfloat16 for m in federation.executor.clients.models.values())


def test_it_really_measures():
    federation, _ = assemble(experiment("fedproto", execution__precision="bf16"), ordinary())
    assert faster_in_bfloat16(federation.executor.clients) in ([], ["mlp(hidden=[7]), d=5"])


@pytest.mark.usefixtures("without_pictures")
def test_a_resumed_run_goes_on_as_it_began(tmp_path, monkeypatch):
    class StopError(Exception):
        pass

    class StopAfterOne(protofed.Progress):
        def round(self, label, record):
            raise StopError

    overrides = {**SMALL, "method.name": "fedproto", "execution.precision": "bf16"}
    monkeypatch.setattr(executors, "faster_in_bfloat16", lambda roster: list(roster.models)[:1])
    whole = protofed.run("quickstart", overrides, out=tmp_path / "whole")
    with pytest.raises(StopError):
        protofed.run("quickstart", overrides, out=tmp_path / "cut", progress=StopAfterOne())
    monkeypatch.setattr(executors, "faster_in_bfloat16", lambda roster: list(roster.models))
    again = protofed.run("quickstart", overrides, out=tmp_path / "cut", resume=True)
    assert [r.losses for r in again.rounds] == [r.losses for r in whole.rounds]
