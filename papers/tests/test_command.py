"""The command that reproduces papers, beside those of the library."""

from __future__ import annotations

from test_cli import test_commands_that_go_on_by_themselves_say_what_was_kept as keeps


def test_what_was_kept_is_said(tmp_path, monkeypatch, capsys):
    keeps(("reproduce", "fedproto/table1"), "protofed_papers.running.reproduce", tmp_path, monkeypatch, capsys)
