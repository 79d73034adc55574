"""Trackers receive the rounds of a run; files stay on this machine."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest

import protofed
from protofed.errors import ConfigError
from protofed.experiments.tracking import TRACKERS, Tracker, scalars
from protofed.runs.records import RoundRecord
from support import SMALL_RUN

SMALL = {**SMALL_RUN, "method.name": "fedproto"}


def test_tensorboard_writes_event_files(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = protofed.run("quickstart", SMALL, out=tmp_path / "run", track=["tensorboard"])
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    for rule in ("head", "global"):
        found = {event.step: event.value for event in events.Scalars(f"accuracy/{rule}")}
        assert found == {r.round: pytest.approx(r.accuracy.weighted[rule], abs=1e-6) for r in run.rounds}
    assert [event.value for event in events.Scalars("bytes/up")] == [r.bytes["up"] for r in run.rounds]


class Recorded(Tracker):
    """A tracker that writes down what it is told."""

    package = "json"

    def __init__(self):
        super().__init__()
        self.told = []

    def begin(self, label, directory, config):
        assert config["method.name"] == "fedproto"
        self.told.append(("begin", label, directory))
        return label

    def log(self, run, round_number, values):
        self.told.append(("log", run, round_number, values))

    def end(self, run, summary):
        self.told.append(("end", run, summary))


def test_a_tracker_is_told_of_every_round_once(tmp_path, monkeypatch):
    tracker = Recorded()
    monkeypatch.setitem(TRACKERS, "recorded", lambda: tracker)
    monkeypatch.setattr("protofed.experiments.tracking.find_spec", lambda name: True)
    TRACKERS["recorded"].package = "json"
    run = protofed.run("quickstart", SMALL, out=tmp_path / "run", track="recorded")
    assert [told[0] for told in tracker.told] == ["begin", "log", "log", "end"]
    assert [told[2] for told in tracker.told[1:3]] == [1, 2]
    assert tracker.told[1][3] == scalars(run.rounds[0])
    assert tracker.told[3][2]["final/global"] == run.outcome.accuracy["global"].final
    late = Recorded()
    late.finished("fedproto", run)  # as of a run in another process
    assert late.told == tracker.told


@pytest.mark.parametrize("several", [False, True])
def test_a_tracker_of_one_s_own_needs_no_name(several, tmp_path):
    tracker = Recorded()
    protofed.run("quickstart", SMALL, out=tmp_path / "run", track=[tracker] if several else tracker)
    assert [told[0] for told in tracker.told] == ["begin", "log", "log", "end"]


def test_numbers_that_are_not_finite_are_left_out():
    record = RoundRecord(
        1,
        [],
        losses={"total": None},
        bytes={"up": 1, "down": 2},
        seconds={"total": 0.5},
        diagnostics={"margin": 2.0, "text": "a", "none": None, "flag": True, "infinite": float("inf")},
    )
    assert scalars(record) == {
        "bytes/up": 1,
        "bytes/down": 2,
        "seconds/total": 0.5,
        "refused": 0,
        "diagnostics/margin": 2.0,
    }


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tensorbord", "unknown tracker 'tensorbord': did you mean 'tensorboard'"),
        ("wandb", "--track wandb needs wandb"),
    ],
)
def test_a_tracker_that_is_not_there_is_one_line_before_training(name, message, tmp_path, monkeypatch):
    monkeypatch.setattr("protofed.experiments.tracking.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=message):
        protofed.run("quickstart", SMALL, out=tmp_path / "run", track=[name])
    assert list(tmp_path.iterdir()) == []


class Client:
    """Stands in for MLflow's client."""

    calls: ClassVar[list] = []

    def __init__(self, uri):
        self.calls.append(("uri", uri))

    def get_experiment_by_name(self, name):
        return None

    def create_experiment(self, name):
        return name

    def create_run(self, experiment, run_name):
        return SimpleNamespace(info=SimpleNamespace(run_id=f"{experiment}/{run_name}"))

    def log_param(self, run, name, value):
        self.calls.append(("param", name, value))

    def log_metric(self, run, name, value, step=None):
        self.calls.append(("metric", run, name, step))

    def set_terminated(self, run):
        self.calls.append(("end", run))


def test_the_calls_to_mlflow_and_wandb(tmp_path, monkeypatch):
    """Their packages are stood in for, so that this checks the calls that the adapters make, not the packages."""
    run = protofed.run("quickstart", SMALL, out=tmp_path / "run")
    mlflow, wandb = ModuleType("mlflow"), ModuleType("wandb")
    mlflow.MlflowClient = Client
    logged = []
    handle = SimpleNamespace(
        log=lambda values, step: logged.append(step), summary={}, finish=lambda: logged.append("end")
    )

    def init(**options):
        assert options["mode"] == "offline"
        return handle

    wandb.init = init
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for module in (mlflow, wandb):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    TRACKERS["mlflow"]().finished("fedproto", run)
    assert Client.calls[0] == ("uri", "sqlite:///mlflow.db")
    assert ("metric", "protofed/fedproto", "accuracy/head", 2) in Client.calls
    assert Client.calls[-1] == ("end", "protofed/fedproto")
    TRACKERS["wandb"]().finished("fedproto", run)
    assert logged == [1, 2, "end"]
    assert handle.summary["final/head"] == run.outcome.accuracy["head"].final
