"""The leaderboard: its rows are runs of the recipe, and the page is made of them."""

from __future__ import annotations

import pytest

from conftest import REPOSITORY
from protofed.api import compare
from support import script


@pytest.fixture(scope="module")
def board():
    return script(REPOSITORY / "tools/leaderboard.py")


@pytest.mark.slow
def test_runs_are_taken_in(board, tmp_path, monkeypatch):
    recipe = tmp_path / "leaderboard.toml"
    text = board.RECIPE.read_text(encoding="utf-8")
    recipe.write_text(text.replace("rounds = 20", "rounds = 1"), encoding="utf-8")
    monkeypatch.setattr(board, "RECIPE", recipe)
    monkeypatch.setattr(board, "FIGURES", tmp_path / "leaderboard.csv")
    tree = board.recipe()
    chosen = dict(list(board.scenarios(tree).items())[:2])
    tree["compare"]["axes"][board.AXIS] = chosen
    compare(tree, ["local", "fedlda-fixed"], [0, 1], out=tmp_path / "runs")
    board.write(board.checked(dict(board.finished(tmp_path / "runs"))))
    runs = board.read()
    assert set(runs) == {(s, a, n) for s in chosen for a in ("local", "fedlda-fixed") for n in (0, 1)}
    for _, run in runs.values():
        assert 0 < run.rules["head"].final <= 1
        assert 0 < run.rules["head"].union <= 1
    text = board.page(runs)
    assert "| `fedlda` |" in text
    assert text.count("| local | 2 |") == 2
