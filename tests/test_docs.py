"""The tutorial and the page on what comes after training work: their blocks are executed in an empty folder."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from protofed.cli.main import main

DOCS = Path(__file__).resolve().parents[1] / "docs"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


WRITTEN = {
    "tutorial": {"runs", "clinic", "slow.py", "my_stage.py", "split.png", "split.svg"},
    "after-training": {"runs", "images.npy", "classes.csv", "client-00.pt2", "client-00.safetensors"},
}
"""What the blocks of each page leave behind."""


@pytest.mark.slow
@pytest.mark.parametrize("page", WRITTEN)
def test_blocks_of_a_page(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    blocks = BLOCK.findall((DOCS / f"{page}.md").read_text())
    assert len(blocks) >= 8
    for language, code in blocks:
        if language == "python":
            exec(compile(code, f"docs/{page}.md", "exec"), names)
            continue
        for line in code.strip().splitlines():
            monkeypatch.setattr(sys, "argv", line.split())
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code, capsys.readouterr().err
    written = {p.name for p in tmp_path.iterdir()} - {"__pycache__"}
    assert written == WRITTEN[page]
