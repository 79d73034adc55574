"""The leaderboard: its rows are runs of the recipe, and the page is made of them."""

from __future__ import annotations

import sys

import pytest

from conftest import REPOSITORY
from protofed.api import compare
from protofed.errors import ProtofedError
from support import script


@pytest.fixture(scope="module")
def board():
    return script(REPOSITORY / "papers/tools/leaderboard.py")


def test_the_page_is_made_of_the_figures(board, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["leaderboard.py", "--check"])
    board.main()


def test_every_arm_has_every_scenario_and_five_seeds(board):
    runs, tree = board.read(), board.recipe()
    arms = {arm for _, arm, _ in runs}
    assert {(s, a, n) for s in board.scenarios(tree) for a in arms for n in range(5)} == set(runs)


def test_a_row_of_another_configuration_is_refused(board):
    (place, (key, run)), *_ = board.read().items()
    assert board.checked({place: (key, run)})
    for changed in ("0" * 16, key[::-1]):
        with pytest.raises(ProtofedError, match=r"was run with another configuration than leaderboard\.toml"):
            board.checked({place: (changed, run)})
    with pytest.raises(ProtofedError, match="no scenario 'of mine'"):
        board.checked({("of mine", *place[1:]): (key, run)})


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
