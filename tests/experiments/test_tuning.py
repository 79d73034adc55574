"""Search for options: spaces, scores on validation samples only, pruning, and going on after a stop."""

from __future__ import annotations

import json
import sys

import pytest

from protofed import api
from protofed.errors import CheckpointError, ConfigError
from protofed.experiments.tuning import SearchRange, Trial, space_of
from protofed.runs.files import read_rounds
from support import write_vectors

SPACE = ["method.lambda=0.01..100:log", "training.lr=0.001..0.3:log"]


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> dict[str, object]:
    return {
        "data.source": "path",
        "data.path": str(write_vectors(tmp_path_factory.mktemp("vectors"))),
        "data.validation_fraction": 0.2,
        "rounds": 3,
        "evaluation.every": 1,
        "model": {"name": "mlp", "d": 6, "options": {"hidden": [5]}},
        "execution.threads": 1,
        "execution.executor": "sequential",
    }


def test_a_space_has_ranges_choices_and_what_is_fixed():
    space, plain = space_of([*SPACE, "method.s=2..9", "method.base=fedproto,fedtgp", "rounds=4"])
    assert space["method.lambda"] == SearchRange(0.01, 100, log=True)
    assert space["method.s"] == SearchRange(2, 9)
    assert space["method.base"] == ("fedproto", "fedtgp")
    assert plain == {"rounds": 4}


@pytest.mark.parametrize("item", ["a=3..1", "a=0..1:log", "a=1..1", "a=-1..1:log", "a=1.2.3..4"])
def test_an_empty_range_is_refused(item):
    with pytest.raises(ConfigError, match=r"must be a range LOW\.\.HIGH"):
        space_of([item])


def test_scores_are_the_best_validation_accuracy_and_nothing_of_the_test_data(given, tmp_path):
    tuned = api.tune("quickstart", SPACE, "fedproto", [0, 1], given, out=tmp_path, trials=3)
    runs = {path.parent: read_rounds(path) for path in tmp_path.glob("*/rounds.jsonl")}
    best = {}
    for path, rounds in runs.items():
        text = (path / "config.toml").read_text()
        rate = next(line for line in text.splitlines() if line.startswith("lr = "))
        best.setdefault(rate, []).append(max(r.validation.weighted["global"] for r in rounds))
    assert len(tuned.trials) == 3
    for trial in tuned.trials:
        assert trial.score == pytest.approx(sum(best[f"lr = {trial.values['training.lr']}"]) / 2)
        assert list(trial.steps) == [1, 2, 3, 4, 5, 6]
    assert tuned.best == max(tuned.trials, key=lambda trial: trial.score)


@pytest.mark.slow
def test_a_trial_below_the_median_is_given_up(given, tmp_path):
    """Once five trials have ended; here they are said to have been better than any can be."""
    chosen = ("quickstart", SPACE, "fedproto", [0], {**given, "rounds": 6})
    assert [len(trial.steps) for trial in api.tune(*chosen, out=tmp_path, trials=5).trials] == [6] * 5
    path = tmp_path / "tuning.json"
    content = json.loads(path.read_text())
    for trial in content["trials"]:
        trial["steps"] = dict.fromkeys(trial["steps"], 2.0)
    path.write_text(json.dumps(content))
    last = api.tune(*chosen, out=tmp_path, trials=6).trials[-1]
    assert (last.ended, last.score) == ("pruned", None)
    assert len(last.steps) < 6


@pytest.mark.slow
def test_a_search_goes_on_where_it_stopped_and_ends_as_if_it_had_not(given, tmp_path):
    chosen = ("quickstart", SPACE, "fedproto", [0], given)
    api.tune(*chosen, out=tmp_path / "a", trials=2)
    stopped = api.tune(*chosen, out=tmp_path / "a", trials=6, budget=-1)
    assert stopped.unfinished
    assert len(stopped.trials) == 2
    assert (
        api.tune(*chosen, out=tmp_path / "a", trials=6).trials
        == api.tune(*chosen, out=tmp_path / "b", trials=6).trials
    )


@pytest.mark.slow
def test_trials_in_processes(given, tmp_path):
    tuned = api.tune("quickstart", SPACE, "fedproto", [0], given, out=tmp_path, trials=4, jobs=2)
    assert [trial.ended for trial in tuned.trials] == ["complete"] * 4
    assert len({trial.values["training.lr"] for trial in tuned.trials}) == 4


def test_failing_trials_do_not_end_a_search_unless_all_fail(given, tmp_path):
    wide = ["model.d=2,12"]
    tuned = api.tune("quickstart", wide, "gfpl", [0], {**given, "rounds": 1}, out=tmp_path / "a", trials=6)
    assert {trial.ended for trial in tuned.trials} == {"complete", "failed"}
    with pytest.raises(ConfigError, match="all trials fail: "):
        api.tune("quickstart", ["model.d=2,3"], "gfpl", [0], given, out=tmp_path / "b", trials=6)


def test_what_is_refused(given, tmp_path, monkeypatch):
    chosen = {"overrides": given, "out": tmp_path / "a", "trials": 1}
    with pytest.raises(ConfigError, match="nothing to tune"):
        api.tune("quickstart", ["rounds=2"], "fedproto", **chosen)
    with pytest.raises(ConfigError, match=r"set data\.validation_fraction=0\.1"):
        api.tune("quickstart", [*SPACE, "data.validation_fraction=0"], "fedproto", **chosen)
    with pytest.raises(ConfigError, match="unknown option of method 's'"):
        api.tune("quickstart", ["method.s=2..4"], "fedproto", **chosen)
    api.tune("quickstart", SPACE, "fedproto", [0], **chosen)
    with pytest.raises(ConfigError, match=r"belongs to another search \(space differ\)"):
        api.tune("quickstart", SPACE[:1], "fedproto", [0], **chosen)
    with pytest.raises(ConfigError, match=r"belongs to another search \(seeds differ\)"):
        api.tune("quickstart", SPACE, "fedproto", [1], **chosen)
    path = tmp_path / "a" / "tuning.json"
    content = json.loads(path.read_text())
    for damaged in (
        {},
        {"trials": 3},
        {"trials": [{"values": {}}]},
        {"trials": [{**content["trials"][0], "score": None}]},
    ):
        path.write_text(json.dumps({k: v for k, v in content.items() if k != "trials"} | damaged))
        with pytest.raises(CheckpointError):
            api.tune("quickstart", SPACE, "fedproto", [0], **chosen)
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'protofed\[tune\]'"):
        api.tune("quickstart", SPACE, "fedproto", [0], **chosen)


def test_a_trial_is_read_as_it_was_written():
    space, _ = space_of(["a=1..2"])
    for trial in (Trial({"a": 1}, 0.5, {1: 0.5}), Trial({"a": 2}, None, {}, "failed", "why")):
        assert Trial.from_dict(json.loads(json.dumps(trial.to_dict())), space, "x") == trial
