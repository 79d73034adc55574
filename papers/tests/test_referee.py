"""The referee of published numbers: nothing differs, what is wrong is found, no code is shared with the library."""

from __future__ import annotations

import ast
import sys

import numpy as np
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


def judged(referee) -> list[str]:
    """Return what differs."""
    found = referee.Referee()
    for check in referee.CHECKS:
        check(found)
    assert found.compared > 10_000
    return found.wrong


def test_every_published_number_is_that_of_the_runs(referee):
    assert judged(referee) == []


WRONG = {
    "papers/studies/scarce.md": ("+2.9 (+1.3 … +4.6)", "+2.8 (+1.3 … +4.6)"),
    "papers/studies/unseen.md": (" better ", " equal "),
    "papers/studies/leaderboard.md": ("| 87.1 ▲ |", "| 87.1 ▼ |"),
    "papers/studies/closed-forms.md": ("| 99.4 ± 0.4 | 98.7", "| 99.4 ± 0.3 | 98.7"),
    "papers/studies/epsilon.md": ("84.1 ± 0.1", "84.2 ± 0.1"),
    "docs/security.md": ("97.9 / 95.0", "97.8 / 95.0"),
    "docs/does-it-help.md": ("+0.1 (-2.2 … +2.3) **inconclusive**", "+0.1 (-2.2 … +2.3) **equal**"),
    "docs/ui.md": ("97.9 %", "97.8 %"),
    "paper/paper.md": ("+9.8 (+8.2 … +11.3)", "+9.8 (+8.2 … +11.2)"),
    "README.md": ("2.4 to 3.9 times", "2.4 to 4.9 times"),
}
"""Pages, each with a number or word of it, and a wrong one."""


@pytest.mark.parametrize("page", WRONG)
def test_a_wrong_number_is_found(page, referee, monkeypatch):
    right, wrong = WRONG[page]
    true = referee.text_of

    def text_of(path):
        text = true(path)
        if path != REPOSITORY / page:
            return text
        assert right in text
        return text.replace(right, wrong, 1)

    monkeypatch.setattr(referee, "text_of", text_of)
    found = judged(referee)
    assert found
    assert all(
        page.removeprefix("docs/").removeprefix("papers/studies/").removesuffix(".md") in line for line in found
    )


def test_an_exception_that_nothing_needs_is_found(referee, monkeypatch):
    monkeypatch.setitem(referee.UNFOUNDED, "12.34 % of nothing", "no longer said")
    assert judged(referee) == ["UNFOUNDED: '12.34 % of nothing' is said nowhere"]


def test_it_imports_numpy_and_scipy_alone():
    names = set()
    for node in ast.walk(ast.parse(TOOL.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {each.name.partition(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module.partition(".")[0])
    assert names - sys.stdlib_module_names == {"numpy", "scipy"}


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(2, 6), shift=st.floats(-3, 3))
def test_two_ways_to_the_same_verdict(seed, n, shift):
    referee = script(TOOL)
    found = (np.random.default_rng(seed).normal(size=n) + shift).tolist()
    assert referee.interval(found) == pytest.approx(list(paired.interval(found)))
    assert referee.verdict(found) == paired.relation(found)
