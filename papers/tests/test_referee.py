"""The referee of published numbers: nothing differs, what is wrong is found, no code is shared with the library."""

from __future__ import annotations

import ast
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import REPOSITORY
from protofed.trained import paired
from support import script

TOOL = REPOSITORY / "papers/tools/referee.py"


@pytest.fixture
def referee():
    return script(TOOL)  # anew: what a page says is kept


def test_every_published_number_is_that_of_the_runs(referee, capsys):
    with pytest.raises(SystemExit) as ended:
        referee.main()
    assert not ended.value.code, capsys.readouterr().out
    assert int(capsys.readouterr().out.split()[0].replace(",", "")) > 11_000


WRONG = [
    ("studies", "papers/studies/scarce.md", "+2.9 (+1.3 … +4.6)", "+2.8 (+1.3 … +4.6)"),
    ("studies", "papers/studies/unseen.md", " better ", " equal "),
    ("studies", "docs/does-it-help.md", "+0.1 (-2.2 … +2.3) **inconclusive**", "+0.1 (-2.2 … +2.3) **equal**"),
    ("leaderboard", "papers/studies/leaderboard.md", "| 87.1 ▲ |", "| 87.1 ▼ |"),
    ("closed", "papers/studies/closed-forms.md", "| 99.4 ± 0.4 | 98.7", "| 99.4 ± 0.3 | 98.7"),
    ("closed", "README.md", "| 97.6 ± 0.6 |", "| 97.7 ± 0.6 |"),
    ("protection", "papers/studies/epsilon.md", "84.1 ± 0.1", "84.2 ± 0.1"),
    ("protection", "docs/security.md", "97.9 / 95.0", "97.8 / 95.0"),
    ("reproduction", "papers/reproduction/fedproto.md", "/ 97.3 ± 2.0 open", "/ 97.3 ± 2.0 within"),
    ("reproduction", "papers/reproduction/gfpl.md", " ± 0.5", " ± 0.6"),
    ("reproduction", "papers/reproduction/README.md", "+0.1 (-1.0 … +1.2) equal", "+0.1 (-1.0 … +1.2) better"),
    ("sentences", "docs/ui.md", "97.9 %", "97.8 %"),
    ("sentences", "paper/paper.md", "+9.8 (+8.2 … +11.3)", "+9.8 (+8.2 … +11.2)"),
    ("sentences", "README.md", "2.4 to 3.9 times", "2.4 to 3.7 times"),
    ("sentences", "docs/does-it-help.md", "by [2.9 points]", "by [3.2 points]"),
    ("sentences", "docs/performance.md", "takes 1.9 to 4.0 times", "takes 1.9 to 4.2 times"),
    ("sentences", "papers/studies/results.md", "-1.2 (-4.5", "-1.2 (-4.6"),
    ("sentences", "papers/reproduction/gfpl.md", "-0.05, -0.97 to +0.88", "-0.05, -0.97 to +0.98"),
    ("until", "papers/studies/speed.md", "**4.0**", "**4.1**"),
    ("claims", "papers/reproduction/gfpl.md", "-0.75 (-1.09 … -0.40)", "-0.75 (-1.09 … -0.30)"),
    (
        "claims",
        "papers/reproduction/protonorm.md",
        "on the other side: protonorm against fml, ",
        "on the other side: ",
    ),
]


@pytest.mark.parametrize(("check", "page", "right", "wrong"), WRONG)
def test_a_wrong_number_is_found(check, page, right, wrong, referee, monkeypatch):
    true = referee.text_of

    def text_of(path):
        text = true(path)
        if path != REPOSITORY / page:
            return text
        assert right in text
        return text.replace(right, wrong, 1)

    monkeypatch.setattr(referee, "text_of", text_of)
    found = referee.Referee()
    vars(referee)[f"check_{check}"](found)
    assert found.wrong


def test_an_exception_that_nothing_needs_is_found(referee, monkeypatch):
    monkeypatch.setitem(referee.UNFOUNDED, "12.34 % of nothing", "no longer said")
    found = referee.Referee()
    referee.check_sentences(found)
    assert found.wrong == ["UNFOUNDED: '12.34 % of nothing' is said nowhere"]


def test_it_imports_numpy_and_scipy_alone():
    names = set()
    for node in ast.walk(ast.parse(TOOL.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.partition(".")[0])
    assert names - sys.stdlib_module_names == {"numpy", "scipy"}


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=6))
def test_two_ways_to_the_same_verdict(found):
    referee = script(TOOL)
    assert referee.interval(found) == pytest.approx(list(paired.interval(found)))
    assert referee.verdict(found) == paired.relation(found)
