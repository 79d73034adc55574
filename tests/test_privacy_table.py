"""Accuracy against ε in docs/privacy.md: its tool, and its tables against the committed figures of every run."""

from __future__ import annotations

import pytest

import protofed
from conftest import REPOSITORY
from support import script

STUDY = sorted((REPOSITORY / "docs/study/privacy").glob("*.csv"))


@pytest.fixture(scope="module")
def tool():
    return script(REPOSITORY / "tools/privacy_table.py")


@pytest.mark.parametrize("path", STUDY, ids=lambda path: path.stem)
def test_the_page_shows_the_committed_figures(tool, path):
    assert tool.table(tool.results([path])) in (REPOSITORY / "docs/privacy.md").read_text()


def test_runs_are_saved_and_read_back(tool, tmp_path):
    small = {"rounds": 1, "data.samples": 300, "data.clients": 4, "partition.alpha": 0.5, "model.d": 16}
    small |= {"method.name": "fedproto", "robust.rule": "none", "privacy.mode": "client"}
    for epsilon in (8.0, float("inf")):
        protofed.run("quickstart", {**small, "privacy.epsilon": epsilon}, out=tmp_path / f"runs/{epsilon}")
    found = tool.results([tmp_path / "runs"])
    assert {r.epsilon for r in found} == {8.0, float("inf")}
    tool.save(found, tmp_path / "study.csv")
    assert tool.results([tmp_path / "study.csv"]) == found
    lines = tool.table(found).splitlines()
    assert lines[0] == "| method, rule | 8 | ∞ |"
    assert [line.split(" | ")[0] for line in lines[2:]] == [
        "| `fedproto`, head",
        "| `fedproto`, nearest own prototype",
        "| `fedproto`, nearest global prototype",
    ]


@pytest.mark.parametrize(("name", "page"), [("privacy", "privacy.md"), ("robust", "security.md")])
def test_the_pages_show_the_figures_of_closed_forms(name, page):
    made = script(REPOSITORY / f"tools/closed_{name}.py")
    expected = made.table(made.read(REPOSITORY / f"docs/study/closed/{name}.csv"))
    assert expected in (REPOSITORY / "docs" / page).read_text()
