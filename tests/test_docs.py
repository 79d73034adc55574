"""The tutorial works: its blocks are executed in order, in an empty folder."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from protofed.cli import main

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_tutorial(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = BLOCK.findall((DOCS / "tutorial.md").read_text())
    assert len(blocks) >= 8
    for language, code in blocks:
        if language == "python":
            exec(compile(code, "docs/tutorial.md", "exec"), names)
            continue
        for line in code.strip().splitlines():
            monkeypatch.setattr(sys, "argv", line.split())
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code, capsys.readouterr().err
    written = {p.name for p in tmp_path.iterdir()} - {"__pycache__"}
    assert written == {"runs", "clinic", "slow.py", "split.png", "split.svg"}
