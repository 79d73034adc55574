"""The tool behind the tables of accuracy against ε."""

from __future__ import annotations

import pytest

import protofed
from conftest import REPOSITORY
from support import script


@pytest.fixture(scope="module")
def tool():
    return script(REPOSITORY / "tools/privacy_table.py")


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
