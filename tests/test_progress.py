"""The live progress bar."""

from __future__ import annotations

import json

import pytest
from rich.progress import Progress as Bars

from protofed.progress import BarProgress
from rundirs import make_run


@pytest.mark.parametrize(
    ("method", "rule", "shown"),
    [("fedproto", "", "global"), ("fedproto", "local", "local"), ("fedavg", "local", "global_model")],
)
def test_a_bar_shows_the_main_rule(tmp_path, method, rule, shown):
    run = make_run(tmp_path / "run", method, rule=rule)
    record = json.loads((run / "rounds.jsonl").read_text().splitlines()[-1])
    progress = BarProgress(Bars(disable=True))
    progress.started("label", 8, 0, run)
    progress.round("label", record)
    assert progress.notes["label"] == f"{shown} {100 * record['accuracy'][shown]['weighted']:.1f}%"
