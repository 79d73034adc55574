"""``docs/notebooks/three-machines.ipynb`` works: it is run in an empty folder, on other ports."""

from __future__ import annotations

import os
import re

import pytest

pytest.importorskip("nbclient", reason="nbclient is not installed: pip install 'protofed[docs]'")

import nbformat
from nbclient import NotebookClient

from conftest import REPOSITORY
from deployment import BIN, free_port

NOTEBOOK = REPOSITORY / "docs/notebooks/three-machines.ipynb"
PAIR = re.compile(r"^(\w+) +deployed (\d+\.\d+) %, simulated (\d+\.\d+) %$", re.M)


def printed(notebook) -> str:
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "\n".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs)


def test_the_committed_outputs_are_whole():
    text = printed(nbformat.read(NOTEBOOK, as_version=4))
    pairs = PAIR.findall(text)
    assert {rule for rule, *_ in pairs} >= {"head", "global"}
    assert all(deployed == simulated for _, deployed, simulated in pairs)
    assert not re.search(r"/(tmp|home|root|work|Users)/", text)


@pytest.mark.slow
@pytest.mark.waits
def test_the_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    text = NOTEBOOK.read_text(encoding="utf-8")
    for port in ("18443", "9101", "9102", "9103"):
        text = text.replace(port, str(free_port()))
    notebook = nbformat.reads(text, as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    pairs = PAIR.findall(printed(notebook))
    assert {rule for rule, *_ in pairs} >= {"head", "global"}
    assert all(deployed == simulated for _, deployed, simulated in pairs)
