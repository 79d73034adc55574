"""What ``flwr run`` sends to nodes: one file, whatever lies in the app's folder or beside it."""

from __future__ import annotations

import io
import re
import tomllib
import zipfile
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.cli.config_utils import load_and_validate
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.supercore.object_ref import load_app

import protofed
from protofed.config.schema import resolve
from protofed.errors import ConfigError
from protofed_flower import server_app
from protofed_flower.app import create_app
from support import command


def bundled(app: Path) -> dict[str, bytes]:
    """Return the files of an app's bundle."""
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_bundle_holds_one_file_whatever_else_lies_there(tmp_path):
    app = tmp_path / "trial" / "app"
    create_app(app)
    alone = bundled(app)
    assert set(alone) == {"pyproject.toml", ".info/CONTENT"}
    deep = app.joinpath("runs", *"abcdefghijkl")  # Flower refuses paths of more than ten folders
    for folder in (app, app / "data" / "north", deep, app.parent, app.parent / "data" / "north"):
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("client.toml", "nodes.json", "rounds.jsonl", "secret.py", "notes.md"):
            (folder / name).write_text("secret = 1\n")
    assert bundled(app) == alone


def test_the_app_names_what_is_installed(tmp_path):
    settings, _ = create_app(tmp_path / "app")
    config, warnings = load_and_validate(settings)
    assert not warnings
    assert config["project"]["version"] == protofed.__version__
    named = config["tool"]["flwr"]["app"]["components"]
    for kind, component in ((ServerApp, "serverapp"), (ClientApp, "clientapp")):
        assert isinstance(load_app(named[component], RuntimeError, tmp_path / "app"), kind)


def test_the_defaults_of_a_run_are_those_the_server_reads(tmp_path):
    settings, _ = create_app(tmp_path / "app")
    config = tomllib.loads(settings.read_text())["tool"]["flwr"]["app"]["config"]
    read = re.findall(r'config\.get\("([\w-]+)"', Path(server_app.__file__).read_text())
    assert set(read) == set(config)


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"is not empty: .* never overwritten: choose a new directory"):
        create_app(tmp_path)
    with pytest.raises(ConfigError, match=r"mine\.txt is a file"):
        create_app(tmp_path / "mine.txt")
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


GONE = [(name, f"command {name!r} is gone: ") for name in ("example", "warm")]


@pytest.mark.parametrize(("name", "why"), [*GONE, ("chek", "unknown command 'chek': did you mean 'check'? ")])
def test_a_command_that_is_gone_or_misspelt_says_what_to_do(name, why, monkeypatch, capsys):
    status, _, said = command(monkeypatch, capsys, "deploy", name, "--any", "thing")
    assert (status, said.count("\n")) == (2, 1)
    assert said.startswith(f"error: {why}")


@pytest.mark.parametrize(
    ("tree", "rule"),
    [
        ({}, "clip"),
        ({"robust": {"reject": 5.0}}, "clip"),
        ({"robust": {"rule": "none"}}, "none"),
        ({"robust": {"rule": "median"}}, "median"),
        ({"secure": {"aggregation": True}}, "none"),  # there are no single uploads to compare
    ],
)
def test_a_deployment_that_names_no_rule_clips(tree, rule):
    assert resolve(server_app.clip_by_default(tree)).robust.rule == rule
    assert resolve(tree).robust.rule == tree.get("robust", {}).get("rule", "none")
