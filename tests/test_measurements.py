"""Pages of measured figures, against the committed figures of every run."""

from __future__ import annotations

import re
import sys

import pytest

from conftest import REPOSITORY
from support import script

STUDY = REPOSITORY / "docs/study"


@pytest.fixture(scope="module")
def tool():
    return script(REPOSITORY / "tools/measurements.py")


def test_the_pages_are_made_of_the_committed_figures(tool, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["measurements.py", "--check"])
    tool.main()


def test_every_table_stands_on_a_page(tool):
    shown = set(re.findall(r"^\{\{(.+)\}\}$", (STUDY / "measurements.toml").read_text(), re.M))
    assert shown == set(tool.MADE) | {path.stem for path in (STUDY / "tables").glob("*.csv")}


def test_a_page_that_differs_is_found(tool, monkeypatch):
    path, text = next(iter(tool.pages().items()))
    monkeypatch.setattr(tool, "pages", lambda: {path: text.replace("1", "2")})
    monkeypatch.setattr(sys, "argv", ["measurements.py", "--check"])
    with pytest.raises(SystemExit, match=r"is out of date: run python tools/measurements\.py"):
        tool.main()


def test_the_readme_shows_the_committed_figures():
    assert script(REPOSITORY / "tools/closed_forms.py").first() in (REPOSITORY / "README.md").read_text()
