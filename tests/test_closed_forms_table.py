"""The tables of closed forms, against the committed figures of every run."""

from __future__ import annotations

import pytest

from conftest import REPOSITORY
from support import script


@pytest.mark.parametrize(
    ("name", "page"),
    [("table", "docs/methods.md"), ("first", "README.md"), ("different", "docs/encoders.md")],
)
def test_the_page_shows_the_committed_figures(name, page):
    tool = script(REPOSITORY / "tools/closed_forms.py")
    assert getattr(tool, name)() in (REPOSITORY / page).read_text()
