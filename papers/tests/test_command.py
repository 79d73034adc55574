"""The command that reproduces papers, beside those of the library."""

from __future__ import annotations

import pytest

from test_cli import inside
from test_cli import test_commands_that_go_on_by_themselves_say_what_was_kept as keeps


def test_a_format_that_there_is_not_is_refused_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("protofed_papers.running.reproduce", lambda *_: pytest.fail("it ran"))
    status, _, error = inside(monkeypatch, capsys, tmp_path, "reproduce", "fedproto/table2", "--format", "latx")
    assert status == 2
    assert error == "error: unknown format 'latx': did you mean 'latex'? Valid: csv, latex, markdown, text\n"
    assert not list(tmp_path.iterdir())


def test_what_was_kept_is_said(tmp_path, monkeypatch, capsys):
    keeps(("reproduce", "fedproto/table1"), "protofed_papers.running.reproduce", tmp_path, monkeypatch, capsys)
