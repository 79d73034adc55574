"""Somebody else's run directory runs no code, whatever option or file of it names some."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from protofed import api, load_run
from protofed.analysis.restore import restore_features
from protofed.compute.imports import importing_only, user_module
from protofed.config.remote import code_of
from protofed.errors import ConfigError
from protofed.experiments import ending
from protofed.runs.loading import load_run as read_run
from protofed.untrusted.reading import read_toml
from support import SMALL_RUN, command, few

PLANTED = "planted.py:Planted"
OPTIONS = {**SMALL_RUN, "method.name": "fedncm", "encoder.name": "random", "encoder.dim": 8, "rounds": 1}
PLACES = {
    "a variant's method": {"variants": {"v": {"method": {"name": PLANTED}}}},
    "a method's options": {"methods": {PLANTED: {}}},
    "the method": {"method": {"name": PLANTED}},
    "a model": {"model": {"name": PLANTED}},
    "a member": {"model": {"members": [{"name": PLANTED}]}},
    "an encoder": {"encoder": {"name": PLANTED}},
    "a stage": {"stages": [PLANTED]},
    "a comparison": {"compare": {"methods": [PLANTED]}},
    "an option of any depth": {"method": {"auxiliary": PLANTED}},
    "code of sites": {"data": {"trust_code": True}},
}
COMMANDS = {
    "export": lambda run: ("export", run, "client-00", "--out", run.parent / "model.pt2"),
    "metrics": lambda run: ("metrics", run),
    "predict": lambda run: ("predict", run, "client-00", run.parent / "x.npz"),
    "audit": lambda run: ("audit", run),
    "forget": lambda run: ("forget", run, "client-00"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    api.run("quickstart", OPTIONS, out=out)
    np.savez(out.parent / "x.npz", x=np.zeros((1, 1, 8, 8), dtype=np.uint8), y=[0])
    return out


@pytest.fixture
def foreign(finished, tmp_path, monkeypatch) -> Path:
    """A copy of the run beside code that leaves a mark when it is imported."""
    shutil.copytree(finished.parent, tmp_path / "runs")
    (tmp_path / "planted.py").write_text("from pathlib import Path\nPath('mark').write_text('imported')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "run"


def plant(run: Path, tree: dict) -> None:
    """Add tables to the configuration of a run."""
    config = read_toml(run / "config.toml")
    for name, own in tree.items():
        config[name] = config.get(name, {}) | own if isinstance(own, dict) else own
    (run / "config.toml").write_text(tomli_w.dumps(config))


@pytest.mark.parametrize("name", COMMANDS)
@few("place", PLACES, 2)
def test_no_command_imports_code_that_a_run_names(place, name, foreign, monkeypatch, capsys):
    plant(foreign, PLACES[place])
    status, _, told = command(monkeypatch, capsys, *COMMANDS[name](foreign))
    assert status
    assert "names code of its own" in told, told
    assert "--trust-code" in told
    assert not Path("mark").exists()


@pytest.mark.parametrize("name", COMMANDS)
def test_what_a_search_forgets_ends_where_code_is_imported(name, foreign, monkeypatch, capsys):
    """The search for names is one lock, the import another: here, the first is taken away."""
    plant(foreign, PLACES["a variant's method"])
    monkeypatch.setattr(ending, "code_of", lambda _: [])
    status, _, told = command(monkeypatch, capsys, *COMMANDS[name](foreign))
    assert status
    assert "that nobody here has permitted" in told
    assert not Path("mark").exists()


def test_models_and_pictures_of_a_run_import_no_code(foreign):
    plant(foreign, PLACES["a variant's method"])
    for act in (lambda: load_run(foreign).client("client-00"), lambda: restore_features(read_run(foreign))):
        with pytest.raises(Exception, match="names code of its own"):
            act()
    assert not Path("mark").exists()


def test_code_in_the_description_of_models_is_found(foreign):
    described = json.loads((foreign / "federation.json").read_text())
    described["models"]["clients"]["client-00"]["name"] = "planted:Planted"
    (foreign / "federation.json").write_text(json.dumps(described))
    with pytest.raises(Exception, match=r"names code of its own .planted:Planted.: pass trust_code=True"):
        load_run(foreign).client("client-01")


def test_a_run_without_code_is_opened(foreign, monkeypatch, capsys):
    for name in ("metrics", "predict"):
        status, _, told = command(monkeypatch, capsys, *COMMANDS[name](foreign))
        assert not status, told


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a:b", True), ("a.b:C.d", True), ("my file.py:Net", True), ("C:\\x\\net.py:Net", True), ("ä:b", True),
        ("x" * 300 + ":y", True), ("cuda:1", False), ("a: b", False), ("a:", False), (":b", False),
    ],
)  # fmt: skip
def test_names_of_code(text, found):
    assert bool(code_of({"model": {"anything": [{"deep": text}]}})) is found
    assert bool(code_of({text: 1})) is found


def test_permission_ends_with_its_block(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("class Mine: pass\n")
    with importing_only(["mine.py:Mine"]):
        assert user_module("mine.py").Mine
        with pytest.raises(ConfigError, match="nobody here has permitted"), importing_only([]):
            user_module("mine.py")
        with pytest.raises(ConfigError, match="nobody here has permitted"):
            user_module("subprocess")
    assert user_module("mine.py").Mine
