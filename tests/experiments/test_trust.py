"""Code that somebody's client.toml names is imported only for those who say so; names work in any script."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from protofed.analysis import write_report
from protofed.data import DataOptions, load, resolve_options
from protofed.errors import ConfigError
from protofed.experiments import Progress
from protofed.experiments.running import run_experiment
from support import client, experiment, federated

np = pytest.importorskip("numpy")


def write(root, *clients):
    for c in clients:
        folder = root / "clients" / c.name
        folder.mkdir(parents=True)
        for split, samples in (("train", c.train), ("test", c.test)):
            np.savez(folder / f"{split}.npz", x=samples.x.numpy(), y=samples.y.numpy())
        (folder / "client.toml").write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in c.settings.items()))
    return root


def wanted(root, **overrides):
    return experiment("fedproto", data__source="path", data__path=str(root), rounds=1, **overrides)


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A module whose import leaves a trace."""
    (tmp_path / "trap.py").write_text(
        "import pathlib\npathlib.Path(__file__).with_name('sprung').touch()\n"
        "from support import WithBatchNorm as make\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "sprung"
    sys.modules.pop("trap", None)


def test_a_clients_code_is_not_imported(trap, tmp_path):
    root = write(tmp_path / "data", client("ann", [0, 1]), client("bob", [0, 1], model="trap:make"))
    with pytest.raises(ConfigError, match=r"^bob: its client\.toml names code, .*'trap:make': .*trust_code=true"):
        run_experiment(wanted(root), tmp_path / "run")
    assert not trap.exists()


def test_code_of_a_trusted_folder_runs_and_the_run_says_so(trap, tmp_path):
    root = write(tmp_path / "data", client("ann", [0, 1]), client("bob", [0, 1], model="trap:make"))
    run_experiment(wanted(root, data__trust_code=True), tmp_path / "run")
    assert trap.exists()
    notes = json.loads((tmp_path / "run" / "federation.json").read_text())["notes"]
    assert "Code named by client.toml was imported for the models of bob." in notes


def test_code_that_the_recipe_names_is_the_recipes(trap, tmp_path):
    root = write(tmp_path / "data", client("ann", [0, 1]), client("bob", [0, 1], model="trap:make"))
    run_experiment(wanted(root, model__name="trap:make", model__options={}), tmp_path / "run")
    assert trap.exists()


@pytest.mark.slow
@pytest.mark.pictures
def test_names_in_any_script_from_folder_to_checkpoint_and_report(tmp_path):
    names = ["Köln", "north clinic", "東京"]
    root = write(tmp_path / "data", *(client(n, [0, 1, 2, 3] * 2) for n in names))

    class AfterOne(Progress):
        def round(self, label, record):
            raise KeyboardInterrupt

    chosen = experiment("fedproto", data__source="path", data__path=str(root), rounds=2)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(chosen, tmp_path / "run", progress=AfterOne())
    run = run_experiment(chosen, tmp_path / "run", resume=True, report=write_report)
    assert [r.participants for r in run.rounds] == [sorted(names)] * 2
    assert sorted(p.name for p in (tmp_path / "run" / "clients").iterdir()) == sorted(names)
    report = run.report.read_text(encoding="utf-8")
    assert all(name in report for name in names)


def test_a_name_that_the_file_system_takes_apart_is_the_same_name(tmp_path):
    root = write(tmp_path / "data", client("Ko\u0308ln", [0, 1]), client("west", [0, 1]))
    data = resolve_options(DataOptions, {"source": "path", "path": str(root)}, "data")
    assert [c.name for c in load(data, "natural", None, 0).clients] == ["Köln", "west"]
    assert torch.equal(federated().class_counts(), torch.zeros(0, 4, dtype=torch.int64))
