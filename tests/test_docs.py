"""The tutorial works: its blocks are executed in order, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_tutorial(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = BLOCK.findall((DOCS / "tutorial.md").read_text())
    assert len(blocks) >= 8
    for language, code in blocks:
        if language == "python":
            exec(compile(code, "docs/tutorial.md", "exec"), names)
            continue
        for line in code.strip().splitlines():
            command = [sys.executable, "-m", "protofed.cli", *line.removeprefix("protofed ").split()]
            result = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=120)
            assert result.returncode == 0, result.stderr
    assert {p.name for p in tmp_path.iterdir()} == {"runs", "clinic", "slow.py", "split.png", "split.svg"}
