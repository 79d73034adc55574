"""Wheels in environments of their own: protofed alone, with what others add, and with its other distributions.

``PROTOFED_WHEELS`` names a folder of wheels to try; without it, they are built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import REPOSITORY

pytestmark = [
    pytest.mark.slow,
    pytest.mark.waits,
    pytest.mark.skipif(not (REPOSITORY / "packages").is_dir() or not shutil.which("uv"), reason="builds wheels"),
]
SMALL = ("rounds=1", "data.clients=3", "data.samples=200", "--quiet", "--out")
BESIDE = ("protofed-flower", "protofed-lab")
OWN = '''
import torch
from protofed.methods.fedproto import FedProto
from protofed.rounds.stage import Stage


class Mine(FedProto):
    """FedProto by another name."""

    name, summary, reference = "mine", "as fedproto", "nobody"
    Options = FedProto.Options


class Halves(Stage):
    """Halves prototypes."""

    def __call__(self, uploads, opened, record):
        for upload in uploads:
            yield upload._replace(payload={**upload.payload, "prototypes": upload.payload["prototypes"] / 2})

    def note(self):
        return ("Prototypes are halved.",)


class Scaled(torch.nn.Module):
    """Samples as they are, but larger."""

    def forward(self, x):
        return 2 * x.flatten(1)
'''
COMMAND = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "protofed-mine"
version = "1"
[project.entry-points."protofed.commands"]
greet = "protofed_mine:greet"
[tool.hatch.build.targets.wheel]
packages = ["protofed_mine"]
"""


def called(*arguments: object, cwd: Path, **changed: str) -> subprocess.CompletedProcess[str]:
    """Return a command that has ended, without what an environment says of this checkout."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run([*map(str, arguments)], cwd=cwd, env={**kept, **changed}, capture_output=True, text=True)


class Place:
    """A folder with an environment."""

    def __init__(self, folder: Path, *wheels: Path) -> None:
        self.folder = folder
        self.good("uv", "venv", "--quiet", "--python", sys.executable, "venv")
        self.install(*wheels)

    def install(self, *what: object) -> None:
        """Install with the versions that were tested."""
        limits = REPOSITORY / "constraints.txt"
        self.good("uv", "pip", "install", "--quiet", "--constraint", limits, *what, VIRTUAL_ENV="venv")

    def good(self, *arguments: object, **changed: str) -> str:
        """Return the output of a command that must succeed."""
        done = called(*arguments, cwd=self.folder, **changed)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def protofed(self, *arguments: object) -> str:
        return self.good("venv/bin/protofed", *arguments)

    def refused(self, *arguments: object) -> str:
        done = called("venv/bin/protofed", *arguments, cwd=self.folder)
        assert done.returncode == 2
        return done.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = Path(given) if (given := os.environ.get("PROTOFED_WHEELS")) else tmp_path_factory.mktemp("wheels")
    if not given:
        for name in ("protofed", *BESIDE):
            built = called(
                "uv", "build", "--quiet", "--wheel", "--out-dir", folder, "--package", name, cwd=REPOSITORY
            )
            assert built.returncode == 0, built.stderr
    found = {path.name.split("-")[0].replace("_", "-"): path.resolve() for path in folder.glob("*.whl")}
    assert found.keys() == {"protofed", *BESIDE}
    return found


@pytest.fixture(scope="module")
def alone(wheels, tmp_path_factory) -> Place:
    return Place(tmp_path_factory.mktemp("alone"), wheels["protofed"])


def test_protofed_runs_alone_and_names_what_is_not_here(alone):
    where = alone.good("venv/bin/python", "-c", "import protofed; print(protofed.__file__)")
    assert "site-packages" in where
    listed = alone.protofed("--help")
    assert "compare" in listed
    assert "deploy" not in listed
    alone.protofed("run", "quickstart", *SMALL, "run")
    assert (alone.folder / "run/report.html").is_file()
    flower = "needs protofed-flower: pip install protofed-flower\n"
    assert alone.refused("demo") == "error: command 'demo' needs protofed-lab: pip install protofed-lab\n"
    assert alone.refused("deploy", "keys") == f"error: command 'deploy' {flower}"
    assert alone.refused("run", "--engine", "flower") == f"error: engine 'flower' {flower}"


def test_a_method_a_stage_an_encoder_and_a_command_are_added_from_outside(alone):
    (alone.folder / "own.py").write_text(OWN)
    alone.protofed("run", "quickstart", "method.name=own.py:Mine", 'stages=["own.py:Halves"]', *SMALL, "mine")
    assert "Prototypes are halved." in (alone.folder / "mine/federation.json").read_text()
    alone.protofed("run", "quickstart", "method.name=fedlda", "encoder.name=own.py:Scaled", *SMALL, "scaled")
    assert "own.py:Scaled" in (alone.folder / "scaled/config.toml").read_text()
    source = alone.folder / "source"
    (source / "protofed_mine").mkdir(parents=True)
    (source / "pyproject.toml").write_text(COMMAND)
    (source / "protofed_mine/__init__.py").write_text('def greet():\n    """Greet."""\n    print("hello")\n')
    alone.install(source)
    assert alone.protofed("greet") == "hello\n"


def test_the_fast_tests_pass_on_the_wheel(alone, wheels):
    alone.install(f"{wheels['protofed']}[dev]")
    shutil.copytree(REPOSITORY / "tests", alone.folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("conftest.py", "pyproject.toml"):  # the latter for pytest's settings
        shutil.copy(REPOSITORY / name, alone.folder)
    alone.good("venv/bin/python", "-m", "pytest", "-m", "fast", "-p", "no:cacheprovider", "tests")


def test_other_distributions_bring_their_commands(wheels, tmp_path):
    place = Place(tmp_path, *wheels.values())
    listed = place.protofed("--help")
    assert all(f"│ {name} " in listed for name in ("audit", "demo", "deploy", "ledger", "ui"))
    place.protofed("run", "quickstart", "method.name=fedproto", *SMALL, "run", "--engine", "flower")
    place.protofed("audit", "run")
    assert (tmp_path / "run/audit.html").is_file()
    assert "--port" in place.protofed("demo", "--help")
