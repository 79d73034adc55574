"""The study of docs/does-it-help.md: its tool, and its tables against the committed figures of every run."""

from __future__ import annotations

import pytest

import protofed
from conftest import REPOSITORY
from support import script

STUDY = sorted((REPOSITORY / "docs/study").glob("*.csv"))


@pytest.fixture(scope="module")
def tool():
    return script(REPOSITORY / "tools/does_it_help.py")


@pytest.mark.parametrize("path", STUDY, ids=lambda path: path.stem)
def test_the_page_shows_the_committed_figures(tool, path):
    arms = tool.arms_of([path])
    late = any(arm.best_rule(tool.newcomers) for arm in arms)
    table = tool.table_of_newcomers(arms) if late else tool.table(arms)
    assert table in (REPOSITORY / "docs/does-it-help.md").read_text()


def test_the_nearest_own_prototype_is_the_rule_of_fedproto(tmp_path):
    """And of a control, which has no such rule, the nearest class mean."""
    small = {"rounds": 2, "data.samples": 300, "data.clients": 4, "partition.alpha": 0.5, "model.d": 16}
    accuracy = script(REPOSITORY / "tools/nearest_mean.py").accuracy
    run = protofed.run("quickstart", {**small, "method.name": "fedproto"}, out=tmp_path / "fedproto")
    assert accuracy(run.directory) == pytest.approx(run.summary["accuracy"]["local"]["final"])
    control = protofed.run("quickstart", {**small, "method.name": "local"}, out=tmp_path / "control")
    assert 0.3 < accuracy(control.directory) <= 1


def test_saved_figures_are_read_back(tool, tmp_path):
    head = tool.Scores(0.5, None, 0.625, 0.25, 0.0, None)
    other = tool.Scores(0.75, 0.7, 0.8, None, None, 1 / 3)
    runs = {seed: tool.Measured({"head": head, "local": other}, 1234.5, 2.0) for seed in (3, 1)}
    arms = [tool.Arm("local", runs), tool.Arm("fedproto", {1: tool.Measured({"head": other}, 0.0, 0.001)})]
    tool.save(arms, tmp_path / "study.csv")
    again = tool.arms_of([tmp_path / "study.csv"])
    assert [(arm.label, arm.runs) for arm in again] == [(arm.label, arm.runs) for arm in arms]
    assert list(again[0].runs) == [1, 3]
    assert tool.best_control(again).label == "local"
    assert (
        tool.table(again).splitlines()[2].startswith("| local | 2 | 75.0 ± 0.0 | 70.0 ± 0.0 | 80.0 ± 0.0 | local |")
    )
