"""Sweeps: grids, runs that are found by their configuration, budgets, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import protofed
from protofed import api
from protofed.config.schema import apply_overrides
from protofed.errors import CheckpointError, ConfigError
from protofed.experiments import Progress, batch, load_recipe, resolve
from protofed.experiments.sweeping import grid, sweep_plan
from support import few, write_vectors

TINY = {
    "data.source": "path",
    "rounds": 3,
    "model.name": "mlp",
    "model.d": 10,
    "model.options": {"hidden": [7]},
    "execution.threads": 1,
    "execution.executor": "sequential",
}


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> dict[str, object]:
    return {**TINY, "data.path": str(write_vectors(tmp_path_factory.mktemp("vectors")))}


def compare(items, *arguments, **named):
    return api.compare("quickstart", *arguments, vary=items, **named)


def stamps(directory: Path) -> dict[str, int]:
    return {p.parent.name: p.stat().st_mtime_ns for p in directory.glob("*/summary.json")}


def test_a_grid_is_read_as_toml_with_commas_between_values():
    axes, plain = grid(
        ["method.s=50,150", "method.base=fedproto,fedtgp", "model.options={hidden=[7, 8]}", 'a="x,y"']
    )
    assert axes["method.s"] == {"50": {"method.s": 50}, "150": {"method.s": 150}}
    assert axes["method.base"]["fedtgp"] == {"method.base": "fedtgp"}
    assert plain == {"model.options": {"hidden": [7, 8]}, "a": "x,y"}


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["method.s=5,5"], "names an option or a value twice"),
        (["method.s=5,6", "method.s=7,8"], "names an option or a value twice"),
        (["method.name=local,fedproto"], "use --methods local,fedproto"),
        (["seed=0,1"], "use --seeds 0,1"),
        (["method.s"], "must read NAME=VALUE"),
    ],
)
def test_a_wrong_grid_is_refused(items, message):
    with pytest.raises(ConfigError) as caught:
        grid(items)
    assert message in str(caught.value)


def test_an_option_that_no_method_has_is_refused_along_an_axis_too(given):
    with pytest.raises(ConfigError, match="unknown option of method 'gama'"):
        compare(["method.gama=1,2"], ["fedproto"], [0], given)


@pytest.mark.slow
def test_what_is_finished_is_never_run_again_and_only_a_changed_cell_is(given, tmp_path):
    chosen = (["local", "tinyproto"], [0, 1], given)
    first = compare(["method.s=2,4"], *chosen, out=tmp_path)
    before = stamps(tmp_path)
    # A method without the option has one run for all of its values.
    assert len(before) == 2 * 1 + 2 * 2
    assert [len(runs) for runs in first.runs.values()] == [2, 2, 2, 2]
    one, other = ([run.directory for run in first.runs[f"local, {s}"]] for s in (2, 4))
    assert one == other
    again = compare(["method.s=2,4"], *chosen, out=tmp_path)
    assert stamps(tmp_path) == before
    assert again.summary == first.summary
    changed = compare(["method.s=2,5"], *chosen, out=tmp_path)
    after = stamps(tmp_path)
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 2
    assert list(changed.axes["method.s"]) == ["2", "5"]
    # Where the data lie, and how fast they are computed, is no part of a configuration.
    compare(
        ["method.s=2,5"],
        *chosen[:2],
        {**given, "data.max_gb": 3, "execution.threads": 2},
        out=tmp_path,
    )
    assert stamps(tmp_path) == after


class Stopping(Progress):
    """Makes the time run out after some rounds."""

    def __init__(self, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.patch = rounds, monkeypatch

    def round(self, label, record):
        self.left -= 1
        if not self.left:
            self.patch.setattr(batch.time, "monotonic", lambda: float("inf"))


@few("rounds", [1, 2, 4, 5], 1)
def test_a_sweep_that_was_stopped_equals_one_that_was_not(given, tmp_path, monkeypatch, rounds):
    chosen = (["method.gamma=1,3"], ["fedproto"], [0], given)
    with monkeypatch.context() as patch:
        stopped = compare(*chosen, out=tmp_path / "a", budget=1000, progress=Stopping(rounds, patch))
    assert stopped.waiting == (["fedproto, 1", "fedproto, 3"] if rounds < 3 else ["fedproto, 3"])
    resumed = compare(*chosen, out=tmp_path / "a")
    whole = compare(*chosen, out=tmp_path / "b")
    assert not resumed.waiting
    for ours, theirs in zip(resumed.runs.values(), whole.runs.values(), strict=True):
        assert [r.accuracy for r in ours[0].rounds] == [r.accuracy for r in theirs[0].rounds]
        assert [r.losses for r in ours[0].rounds] == [r.losses for r in theirs[0].rounds]


def test_a_budget_that_is_spent_begins_nothing(given, tmp_path):
    result = compare(["method.gamma=1,3"], ["fedproto"], [0], given, out=tmp_path, budget=-1)
    assert result.waiting == ["fedproto, 1", "fedproto, 3"]
    assert not stamps(tmp_path)
    assert not result.report.exists()


@pytest.mark.parametrize("text", ["0", "0h", "0h0m"])
def test_no_budget_at_all_is_refused(text):
    with pytest.raises(ConfigError, match="must be a time such as 2h"):
        batch.seconds(text)


@pytest.mark.parametrize(
    ("text", "expected"), [("2h", 7200), ("1h30m", 5400), ("90s", 90), ("1.5h", 5400), ("1d", 86400)]
)
def test_budgets(text, expected):
    assert batch.seconds(text) == expected


@pytest.mark.parametrize("text", ["2", "soon", "2x", "h", "-1h", "1h soon"])
def test_a_wrong_budget_is_refused(text):
    with pytest.raises(ConfigError, match="must be a time such as"):
        batch.seconds(text)


def test_a_failing_run_does_not_stop_the_others(given, tmp_path):
    """GFPL's fixed classifier needs a dimension of at least K."""
    tree = apply_overrides(load_recipe("quickstart"), {**given, "compare.methods": ["gfpl"]})
    plan = sweep_plan(tree, grid(["rounds=1,2"])[0])
    narrow = {"model": {"name": "mlp", "d": 2}}
    broken = {c: e if e.rounds == 1 else resolve({**e.to_tree(), **narrow}) for c, e in plan.experiments.items()}
    result = type(plan)(plan.options, broken, True).run(
        tmp_path, resume=True, progress=Progress(), jobs=1, report=lambda *_: None
    )
    assert list(result.failed) == ["gfpl, 2"]
    assert len(result.runs["gfpl, 1"]) == 1


def test_a_folder_of_another_version_or_with_other_things_is_refused(given, tmp_path):
    (tmp_path / "runs.json").write_text(json.dumps({"format": 1, "protofed": "0.0.9"}))
    with pytest.raises(CheckpointError, match=r"holds runs of protofed 0\.0\.9"):
        compare(["method.gamma=1,3"], ["fedproto"], [0], given, out=tmp_path)
    (tmp_path / "runs.json").write_text(json.dumps({"format": 9, "protofed": protofed.__version__}))
    with pytest.raises(CheckpointError, match="written in format 9"):
        compare(["method.gamma=1,3"], ["fedproto"], [0], given, out=tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match="is not empty"):
        compare(["method.gamma=1,3"], ["fedproto"], [0], given, out=tmp_path / "other")
    assert (tmp_path / "other" / "thesis.txt").read_text() == "precious"


def test_a_large_sweep_needs_a_budget_of_time(given, tmp_path):
    values = ",".join(map(str, range(1, 601)))
    with pytest.raises(ConfigError, match=r"1,200 runs: say for how long they may run, e\.g\. --budget 8h"):
        compare(["rounds=1,2", f"method.gamma={values}"], ["fedproto"], [0], given, out=tmp_path)
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_a_sweep_in_processes_gives_the_same(given, tmp_path):
    chosen = (["method.gamma=1,3"], ["fedproto"], [0], given)
    alone, together = (compare(*chosen, out=tmp_path / str(jobs), jobs=jobs) for jobs in (1, 2))
    assert alone.summary == together.summary
