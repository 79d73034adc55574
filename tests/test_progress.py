"""The live progress bar, in a terminal and in notebooks."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from rich.progress import Progress as Bars

from protofed.cli import common
from protofed.experiments.progress import BarProgress, NotebookProgress, in_notebook
from protofed.runs.loading import load_run
from rundirs import make_run


@pytest.mark.parametrize(
    ("method", "rule", "shown"),
    [("fedproto", "", "global"), ("fedproto", "local", "local"), ("fedavg", "local", "global_model")],
)
def test_a_bar_shows_the_main_rule(tmp_path, method, rule, shown):
    run = make_run(tmp_path / "run", method, rule=rule)
    record = load_run(run).rounds[-1]
    progress = BarProgress(Bars(disable=True))
    progress.started("label", 8, 0, run)
    progress.round("label", record)
    assert progress.notes["label"] == f"{shown} {100 * record.accuracy.weighted[shown]:.1f}%"


class Shell:
    """Stands in for a notebook's display: remembers every state of what it shows."""

    def __init__(self):
        self.states = []

    def display(self, shown, display_id):
        assert display_id
        self.update(shown)
        return self

    def update(self, shown):
        self.states.append(shown)


def test_a_line_in_a_notebook(tmp_path):
    run = make_run(tmp_path / "run")
    record = load_run(run).rounds[-1]
    shell = Shell()
    progress = NotebookProgress(shell.display, str)
    progress.started("<label>", 8, 0, run)
    progress.round("<label>", record)
    assert "round 8/8: global" in shell.states[1]
    assert "&lt;label&gt;" in shell.states[1]
    progress.round("<label>", replace(record, losses={"total": None}))
    assert "losses are not finite" in shell.states[-1]
    assert "round 8/8" in shell.states[-1]


def test_notebooks_are_recognised(monkeypatch):
    assert in_notebook() is None
    kernel = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel))
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=print))
    assert isinstance(in_notebook(), NotebookProgress)
    terminal = type("TerminalInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: terminal))
    assert in_notebook() is None


def test_a_signal_whose_exception_a_destructor_swallowed_is_obeyed_at_the_next_report(monkeypatch):
    monkeypatch.setattr(common, "signals", [15])
    with pytest.raises(KeyboardInterrupt), common.report_progress(quiet=True) as progress:
        progress.advanced()
